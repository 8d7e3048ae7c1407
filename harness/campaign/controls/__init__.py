"""Runs that find why others failed: controls, comparisons, and searches for the smallest part that still fails."""
