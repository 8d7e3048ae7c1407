"""The functions of the checks: each takes its `Site` and returns one line on what it found, or raises."""
