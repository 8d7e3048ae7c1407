"""Chooses the next run of a search: for a known-good cell, for every cell, between cells, or for fewer variables."""
