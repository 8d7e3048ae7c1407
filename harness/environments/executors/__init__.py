"""Starts, finds and stops the commands of a run, as processes or in containers."""
