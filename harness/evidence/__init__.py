"""The run folder, the records, their index, and the outcome of a run."""
