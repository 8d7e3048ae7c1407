"""What the records show: rates, bounds, verdicts."""
