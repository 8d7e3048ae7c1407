"""Environments of cells: pins become hashes, then wheels, then a virtual environment or an image."""
