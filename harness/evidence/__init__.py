"""The run folder, records, their index, and the outcome of a run."""
