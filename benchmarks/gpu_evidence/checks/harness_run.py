"""Rows about the harness on this device: a whole `matrix run` with this interpreter, and the explanation of a log."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu_evidence.finding import Finding, Kit, finding_or_differs
from vpoc.probes.site import Site, Skipped

CHECKOUT = Path(__file__).parents[3]
EXPLAIN_S = 60
TO_END_S = 30.0
"""Seconds that the harness has to end a run before this process itself is ended."""


def workload(site: Site, _kit: Kit, name: str) -> Finding:
    """Run the workload `name` in the stack `host`; it must complete and leave a record."""
    results = site.folder / "results"
    words = [*harness(), "--results", str(results), "run", "host-plain", "--workload", name]
    words += ["--executor", "process", "--python", sys.executable]
    site.at(f"matrix run host-plain --workload {name}")
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(words, cwd=CHECKOUT, text=True, **pipes)  # type: ignore[call-overload]
    try:
        out, err = process.communicate(timeout=max(site.stacks_at - time.monotonic() - TO_END_S, TO_END_S))
    except subprocess.TimeoutExpired:
        # The harness itself ends its run, which has its own session.
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    records = [json.loads(path.read_text(encoding="utf-8")) for path in results.glob("runs/*/record.json")]
    if len(records) != 1:
        said = (err.strip() or out.strip() or "nothing").splitlines()[-1]
        if "No module named" in err or ": lacks " in err:
            raise Skipped(f"what the harness or the app needs is not here: {said}")
        finding_or_differs(
            False, f"{len(records)} records, exit status {process.returncode}: {said}", {"records": len(records)}
        )
    record = records[0]
    device = record["intent"]["device"]
    if device != site.device:
        finding_or_differs(
            False, f"it trained on {device}: without this process's variables torch sees no GPU", {"device": device}
        )
    why = f" ({record['diagnosis']}: {record['detail']})" if record["outcome"] != "completed" else ""
    return finding_or_differs(
        record["outcome"] == "completed", f"{record['outcome']}{why}", {"outcome": record["outcome"]}
    )


def explained(log: Path) -> str | None:
    """Return the class of failure that `matrix explain` finds in a log; None if the harness cannot be run."""
    words = [*harness(), "explain", "--log", str(log), "--json"]
    done = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, timeout=EXPLAIN_S, check=False)
    try:
        found: str | None = json.loads(done.stdout)["explanation"]["class"]
    except (ValueError, KeyError, TypeError):
        return None
    return found


def harness() -> list[str]:
    """Return the command `matrix`, with the interpreter of the checkout if there is one, else with this one."""
    own = CHECKOUT / ".venv" / "bin" / "python"
    return [str(own) if own.exists() else sys.executable, "-m", "harness"]
