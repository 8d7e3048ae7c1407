"""Explains why a run failed: class, cause, evidence and remedy, by rules that are data. It never decides an outcome."""

from harness.diagnosis.explain import as_on_its_device, explain_record, explain_run
from harness.diagnosis.explain_log import explain_files

__all__ = ["as_on_its_device", "explain_files", "explain_record", "explain_run"]
