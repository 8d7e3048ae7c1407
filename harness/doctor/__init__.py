"""Examines a machine before anything runs on it: causes of failing trainings, and the commands that fix them."""

from harness.doctor.checks import CHECKS, check_id, examine
from harness.doctor.checks.system import foreign_system
from harness.doctor.finding import Finding, Level
from harness.doctor.machine import Machine
from harness.doctor.read import read_machine

__all__ = ["CHECKS", "Finding", "Level", "Machine", "check_id", "examine", "foreign_system", "read_machine"]
