"""Which variables of a preset matter, and whether two cells differ."""
