"""Pins -> hashes -> wheels -> a virtual environment or an image."""
