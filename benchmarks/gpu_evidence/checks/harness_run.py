"""The harness on this device: a whole `matrix run` with this interpreter, and what it makes of a log."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu_evidence.finding import Finding, Kit, held_if
from vpoc.probes.site import Site, Skipped

CHECKOUT = Path(__file__).parents[3]
EXPLAIN_S = 60


def workload(site: Site, _kit: Kit, name: str) -> Finding:
    """Run the workload `name` in the stack `host`: it has to complete, with a record."""
    results = site.folder / "results"
    words = [*harness(), "--results", str(results), "run", "host-plain", "--workload", name]
    words += ["--executor", "process", "--python", sys.executable]
    site.at(f"matrix run host-plain --workload {name}")
    done = subprocess.run(words, cwd=CHECKOUT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    records = [json.loads(path.read_text(encoding="utf-8")) for path in results.glob("runs/*/record.json")]
    if len(records) != 1:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        if "No module named" in done.stderr:
            raise Skipped(f"what the harness or the app needs is not here: {said}")
        held_if(False, f"{len(records)} records, exit status {done.returncode}: {said}", {"records": len(records)})
    record = records[0]
    why = f" ({record['diagnosis']}: {record['detail']})" if record["outcome"] != "completed" else ""
    return held_if(record["outcome"] == "completed", f"{record['outcome']}{why}", {"outcome": record["outcome"]})


def explained(log: Path) -> str | None:
    """The class of failure that `matrix explain` finds in a log; None where there is no harness to ask."""
    words = [*harness(), "explain", "--log", str(log), "--json"]
    done = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, timeout=EXPLAIN_S, check=False)
    try:
        found: str | None = json.loads(done.stdout)["class"]
    except (ValueError, KeyError):
        return None
    return found


def harness() -> list[str]:
    """The command `matrix`, by the interpreter of the checkout or else by this one."""
    own = CHECKOUT / ".venv" / "bin" / "python"
    return [str(own) if own.exists() else sys.executable, "-m", "harness"]
