"""Explains why a run failed: class, cause, evidence and remedy, by rules that are data. It never decides an outcome."""
