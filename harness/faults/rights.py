"""What this process is permitted to do. Root may have given up, or not been given, its capabilities."""

import re
from pathlib import Path

# Numbers of linux/capability.h.
NET_ADMIN, SYS_ADMIN = 12, 21


def has_capabilities(*numbers: int, root: Path = Path("/")) -> bool:
    """Whether this process has all of these capabilities in effect."""
    try:
        status = (root / "proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return False
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    effective = int(found[1], 16) if found else 0
    return all(effective >> number & 1 for number in numbers)
