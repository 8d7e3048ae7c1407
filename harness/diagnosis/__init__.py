"""Explains why a run failed: class, cause, evidence and remedy, by rules that are data. It never decides an outcome."""

from harness.diagnosis.explain import explain_record, explain_run
from harness.diagnosis.explain_log import explain_files

__all__ = ["explain_files", "explain_record", "explain_run"]
