"""Looks at a machine before anything runs on it: what would make trainings fail, and the command that fixes it."""

from harness.doctor.checks import CHECKS, about, check_id, examine
from harness.doctor.checks.system import foreign_system
from harness.doctor.finding import Finding, Level
from harness.doctor.machine import Machine
from harness.doctor.read import read_machine

__all__ = ["CHECKS", "Finding", "Level", "Machine", "about", "check_id", "examine", "foreign_system", "read_machine"]
