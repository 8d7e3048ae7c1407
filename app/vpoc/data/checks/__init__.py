"""Faults in a file of bars: how they are found, counted, and fixed in a copy."""
