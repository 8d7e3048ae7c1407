"""Conclusions from the records: rates, bounds, verdicts."""
