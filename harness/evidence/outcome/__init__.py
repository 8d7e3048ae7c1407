"""The outcome of a run: what was asked, what was seen, what speaks against it."""
