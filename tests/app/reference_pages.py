"""Write the pages of docs/reference that come from the app's tables, for `make docs`; a test compares them."""

from pathlib import Path

from vpoc.features.table import BY_RANGE, FEATURES
from vpoc.probes.all_checks import ALL_CHECKS
from vpoc.training.faults.kinds import FAULT_KINDS

FOLDER = Path(__file__).parents[2] / "docs" / "reference"

FEATURES_HEAD = """\
# Features

Made from `app/vpoc/features/table.py` by `make docs`; [data and features](../data.md#features) says how they are
computed.

Columns of the file, in this order: `trade_date`, `ts` (bar rows: start of the bar, UTC), the features, the targets.
Prices are in ticks of 0.25. O, H, L, C, V: RTH up to the as-of time. P: the price that distances are taken from: C,
or the open of the next session with `--as-of open`. VPOC, VAH, VAL: of the profile of the RTH bars so far. t-1 is the
session before. "Latest open" is O after t-1, and with `--as-of open` the next open after this session.

A zero denominator gives 0.5 for positions in a range and 0 for other ratios. Before they enter a model, columns in
ticks are divided by the row's `adr20`, marked below; then all are [scaled](../training.md#scaling).

"""
FEATURES_TAIL = """
## Definitions

- `adr20`: mean range of the 20 sessions up to this one (session rows), or before it (bar rows).
- `vix_z20`: against the 20 closes up to the session (session rows), or up to the one before (bar rows). The VIX close
  of a session is the last value by 17:00.
- `log_vol_rel`: against the mean of 20 sessions of full length by the same minute.
- `naked_up`, `naked_dn`: 4 `adr20` where there is no naked VPOC; `naked_age` is 0 then. Naked are VPOCs of the last
  60 complete sessions (of the lookback sessions when they are fewer), untouched in RTH since, of the same contract.
- Composites: of the last 5 or 20 complete sessions (bar rows: those before this one), cut at a roll.
- HVN: local maxima of at least half the peak of the smoothed profile; LVN: local minima of at most a quarter, between
  two HVN.
- Thirds (`shape_pb`): rows whose centre lies in the upper or lower third of the range.
- TPO: single prints have one TPO and rows with more on both sides; a tail is a run of single TPOs from the end; a
  poor high or low has two or more at the end. TPOC as VPOC.
- Overnight is what comes before 09:30; bars of a holiday on which only Globex trades belong to the next session.
"""
PROBES_HEAD = """\
# Checks of the probe

Made from the table of `vpoc probe` by `make docs`. Each check runs in a process of its own within its limit
(`--limit-scale 3` triples them all). Numbers are compared with known ones: whole-number products exactly, networks
with float64 on the CPU within a tolerance. On a CPU `hipblaslt-shape`, `peer-copy` and `data-parallel` are skipped;
those and `all-reduce` need two GPUs.

| check | limit, s | shows |
|---|---|---|
"""
PROBES_TAIL = """
| outcome | meaning |
|---|---|
| `passed` | the numbers are right, and the process ended by itself with status 0 |
| `failed` | an exception, a device that is not there, or an end without an answer |
| `wrong-result` | a number differs from the known one; `detail` has both |
| `crashed` | a signal ended the process |
| `hung` | it did not end within its limit; `stderr` has the stacks |
| `skipped` | makes no sense here, or nothing works without an earlier check that broke |

A broken check does not end the probe, unless it is `import` or `device`. A check that hangs gets TERM, two seconds
later KILL. When its process is still there ten seconds later, `detail` says that it cannot be killed, and the rest is
skipped.

Exit status: 0 all passed or skipped, 1 a check broke, 3 the device is not there, 130 or 143 interrupted.

| key of `--json` | meaning |
|---|---|
| `schema` | version of this table |
| `device`, `limit_scale` | as asked |
| `interrupted_by` | name of the signal that ended the probe, else null |
| `breaks_at` | the first check that broke, else null |
| `checks` | one object per check that was tried or skipped, in order: |
| `check` | its name |
| `outcome` | see above |
| `seconds`, `limit_s` | time it took, with the start of the process; its limit, scaled |
| `detail` | what it saw, or at what it broke, in one line |
| `stderr` | the last 40 lines its processes wrote, 400 with the stacks of a check that hung |
| `exit_code`, `signal` | how the process ended; null where it does not apply |
| `killable` | false when a process of the check could not be killed |
"""
FAULTS_HEAD = """\
# Faults of a training by hand

Made from the kinds of `vpoc train --inject-fault KIND@STEP` (or `KIND@STEP/RANK`; steps from 1, ranks from 0) by
`make docs`. Such a run is never evidence. `hang-collective` and `flip-peer-buffer` need ranks, `hang-loader` the
plain loop, `torn-progress` and `clock-back` a `--run-dir`. `eat-memory` and `child-eats-memory` take all memory there
is: give the container a limit. `fill-disk` fills the disk of `--output`: give it a small one. A fault whose step or
rank would never come is refused.

| kind | what happens |
|---|---|
"""


def features_page() -> str:
    """Return the page of the features."""
    lines = ["| # | name | formula | unit | by `adr20` | source |", "|---|---|---|---|---|---|"]
    for number, feature in enumerate(FEATURES, 1):
        divided = "yes" if feature.name in BY_RANGE else ""
        formula = feature.formula.replace("|", "\\|")
        lines.append(f"| {number} | `{feature.name}` | {formula} | {feature.unit} | {divided} | {feature.source} |")
    return FEATURES_HEAD + "\n".join(lines) + "\n" + FEATURES_TAIL


def probes_page() -> str:
    """Return the page of the checks of `vpoc probe`."""
    rows = [f"| `{one.name}` | {one.limit_s:g} | {one.shows} |\n" for one in ALL_CHECKS]
    return PROBES_HEAD + "".join(rows) + PROBES_TAIL


def faults_page() -> str:
    """Return the page of the faults that `vpoc train` injects."""
    return FAULTS_HEAD + "".join(f"| `{kind}` | {what} |\n" for kind, what in FAULT_KINDS.items())


PAGES = {
    FOLDER / "features.md": features_page,
    FOLDER / "probes.md": probes_page,
    FOLDER / "train-faults.md": faults_page,
}

if __name__ == "__main__":
    for file, made in PAGES.items():
        file.write_text(made(), encoding="utf-8")
