"""The run folder, the records, their index, the outcome of a run, and verdicts."""
