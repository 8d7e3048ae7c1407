"""Starts, finds and stops the processes of a run: as processes, or in containers."""
