"""Runs that say why others failed: controls, comparisons, and the least that still fails."""
