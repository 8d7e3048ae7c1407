"""Finds out what a unit of the user's own systemd needs: lingering, and variables of the caller."""

import os
import subprocess

from harness.base.certificates import NAMED

ANSWER_SECONDS = 30
# Variables of the caller that a unit gets: our own, and what leads to Docker, indexes and through proxies.
PASSED_ON = ("PATH", "HOME", "USER", "XDG_STATE_HOME", "SSL_CERT_DIR", *NAMED)
PREFIXES = ("MATRIX_", "DOCKER_", "UV_", "PIP_")


def passed_on() -> dict[str, str]:
    """Return the variables of the caller that a unit gets."""
    return {
        key: value
        for key, value in os.environ.items()
        if key in PASSED_ON or key.startswith(PREFIXES) or key.lower().endswith("_proxy")
    }


def lingers() -> bool:
    """Return whether units of the user run without a login."""
    return ask_tool("loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value").stdout.strip() == "yes"


def ask_tool(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of systemd; one that is missing or does not answer counts as failed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
