"""Files that others can read while they are written, and files that whoever wrote them may not be trusted with."""
