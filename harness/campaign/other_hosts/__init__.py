"""Runs that a scheduler carries to other hosts, followed to their records."""
