"""The colours of outcomes and tiers on a terminal."""

from collections.abc import Mapping

from harness.evidence.verdicts.verdict import Tier

OUTCOME_COLOURS: Mapping[str, str] = {
    "completed": "green",
    "failed": "red",
    "hung": "magenta",
    "interrupted": "yellow",
    "host-fault": "bright_red",
}
TIER_COLOURS: Mapping[Tier, str] = {
    "untested": "dim",
    "excluded": "dim",
    "failing": "red",
    "flaky": "magenta",
    "seen": "default",
    "candidate": "cyan",
    "good": "green",
    "known-good": "bold green",
}
