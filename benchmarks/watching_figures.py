"""Make the page of figures on watching from the measured parts, without side effects."""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from harness.run.watch.confirm import LEAST_BETWEEN_SAMPLES_SECONDS

Part = Mapping[str, Any]

HANG_GOAL_SECONDS = 30
# A rank that exceeds its limit is looked at once more: another stack sample, on a loaded machine seconds later.
LOOK_SECONDS = LEAST_BETWEEN_SAMPLES_SECONDS
SHAPES_GOAL, SHAPED_RUNS_GOAL, HANGS_GOAL = 12, 100, 200
COST_GOAL_PERCENT = 1
KINDS_GOAL, REPEATS_GOAL, HEALTHY_GOAL = 20, 5, 200
NOT_MEASURED = "not measured"
LONGEST_CELL = 300
TITLES = {
    "faults-process": "injected faults as processes",
    "faults-docker": "injected faults in containers",
    "healthy": "healthy runs",
    "shapes": "healthy runs of many shapes",
    "hangs": "hangs in steady steps",
    "cost": "cost of watching",
}


def page(parts: Mapping[str, Part]) -> str:
    """Return the page as Markdown; a missing part counts as not measured."""
    lines = [
        "# Figures on watching",
        "",
        "`make soak` wrote this page; the figures are also in [watching-figures.json](watching-figures.json). All",
        "figures were measured on a CPU: nothing here is about a GPU.",
        "",
        "| what | goal | measured | met |",
        "| --- | --- | --- | --- |",
        *(f"| {what} | {goal} | {measured} | {met} |" for what, goal, measured, met in figures(parts)),
        "",
        "| part | when (UTC) | machine | command |",
        "| --- | --- | --- | --- |",
        *(_origin(title, parts.get(name)) for name, title in TITLES.items()),
    ]
    for name in ("faults-process", "faults-docker"):
        if part := parts.get(name):
            lines += ["", f"## {TITLES[name].capitalize()}", "", *_kinds(part)]
    if parts.get("shapes") or parts.get("hangs"):
        lines += ["", *SHAPED.splitlines()]
    if part := parts.get("shapes"):
        lines += ["", "| healthy runs | runs | alarms |", "| --- | --- | --- |", *_shapes(part)]
    if part := parts.get("hangs"):
        lines += ["", "| a rank | runs | found | right rank | s from its last step: median | most |"]
        lines += ["| --- | --- | --- | --- | --- | --- |", *_hangs_by_kind(part)]
    return "\n".join(lines) + "\n"


SHAPED = """\
## Runs of many shapes, side by side

These are real processes, watched in real time with the limits of any run. They are not trainings but ranks that go
through given phases and sleep (`benchmarks/shaped_ranks.py`), many side by side. Every second healthy run, and about
half of the runs that hang, are watched as if five quick runs were known, with the tightest limits there are. A
stopped process shows no stacks, and is found after twice its limit. Two samples of the stacks must confirm a hang: if
tens of processes share a core, as the load above shows, the samples take longer than intended."""


def figures(parts: Mapping[str, Part]) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each figure: name, goal, measured, met."""
    for name in ("faults-process", "faults-docker"):
        yield _injected_faults(TITLES[name], parts.get(name))
        yield from _hangs(TITLES[name], parts.get(name))
    yield _false_alarms(parts.get("healthy"))
    yield _shaped_alarms(parts.get("shapes"))
    yield _steady_hangs(parts.get("hangs"))
    yield _cost(parts.get("cost"))


def _injected_faults(title: str, part: Part | None) -> tuple[str, str, str, str]:
    what = f"{title}: right outcome, class and rank, nothing left, next run completes"
    goal = f"{KINDS_GOAL} kinds x {REPEATS_GOAL}"
    kinds = part["kinds"].values() if part else ()
    if not kinds:
        return what, goal, NOT_MEASURED, "-"
    injected, right = sum(kind["made"] for kind in kinds), sum(kind["right"] for kind in kinds)
    least = min(kind["made"] for kind in kinds)
    enough = len(kinds) >= KINDS_GOAL and least >= REPEATS_GOAL
    return (
        what,
        goal,
        f"{right} of {injected} right: {len(kinds)} kinds, at least {least} each",
        _met(right == injected, enough),
    )


def _hangs(title: str, part: Part | None) -> Iterator[tuple[str, str, str, str]]:
    found, named = f"{title}: hang found, steady step, at most", f"{title}: stuck rank named"
    hangs = [kind for kind in part["kinds"].values() if kind["hang"]] if part else []
    if not hangs:
        yield found, f"{HANG_GOAL_SECONDS} s", NOT_MEASURED, "-"
        yield named, "every time", NOT_MEASURED, "-"
        return
    seconds = [second for kind in hangs for second in kind["seconds"]]
    injected, right = sum(kind["made"] for kind in hangs), sum(kind["named"] for kind in hangs)
    took = f"{max(seconds):.1f} s (median {median(seconds):.1f} s), " if seconds else ""
    in_time = sum(second <= HANG_GOAL_SECONDS for second in seconds)
    value = f"{took}{len(seconds)} of {injected} hangs of {len(hangs)} kinds"
    yield found, f"{HANG_GOAL_SECONDS} s", value, _met(in_time == injected)
    yield named, "every time", f"{right} of {injected}", _met(right == injected)


def _false_alarms(part: Part | None) -> tuple[str, str, str, str]:
    what, goal = "false alarms in healthy runs", f"0 of {HEALTHY_GOAL}"
    if part is None:
        return what, goal, NOT_MEASURED, "-"
    conditions = part["conditions"]
    runs, alarms = (sum(one[key] for one in conditions.values()) for key in ("runs", "alarms"))
    value = ", ".join(f"{one['runs']} {name}" for name, one in conditions.items())
    return what, goal, f"{alarms} of {runs}: {value}", _met(alarms == 0, runs >= HEALTHY_GOAL)


def _shaped_alarms(part: Part | None) -> tuple[str, str, str, str]:
    what, goal = "false alarms in healthy runs of many shapes", f"0 of {SHAPED_RUNS_GOAL}, {SHAPES_GOAL} shapes"
    if part is None:
        return what, goal, NOT_MEASURED, "-"
    tried = [one for one in part["shapes"].values() if one["runs"]]
    runs, raised = sum(one["runs"] for one in tried), sum(one["alarms"] for one in tried)
    enough = runs >= SHAPED_RUNS_GOAL and len(tried) >= SHAPES_GOAL
    return what, goal, f"{raised} of {runs}: {len(tried)} shapes", _met(raised == 0, enough)


def _steady_hangs(part: Part | None) -> tuple[str, str, str, str]:
    what = "hangs in steady steps found with the right rank, from the last step"
    within = HANG_GOAL_SECONDS + LOOK_SECONDS
    goal = f"{HANGS_GOAL} of {HANGS_GOAL}, within {HANG_GOAL_SECONDS} s and a look of {LOOK_SECONDS:.0f} s"
    if part is None:
        return what, goal, NOT_MEASURED, "-"
    tried = [one for one in part["hangs"].values() if not one["stopped"]]
    runs, seconds = sum(one["runs"] for one in tried), [second for one in tried for second in one["seconds"]]
    right = min(sum(one[key] for one in tried) for key in ("found", "named"))
    in_time = sum(second <= within for second in seconds)
    value = f"{right} of {runs}, {in_time} of them in time: median {median(seconds):.1f} s, most {max(seconds):.1f} s"
    return what, goal, value, _met(right == in_time == runs, runs >= HANGS_GOAL)


def _shapes(part: Part) -> Iterator[str]:
    for name, one in part["shapes"].items():
        yield f"| {name} | {one['runs']} | {one['alarms']}{': ' * bool(one['what'])}{_cell(one['what']).strip('-')} |"


def _hangs_by_kind(part: Part) -> Iterator[str]:
    for name, one in part["hangs"].items():
        took = f"{median(one['seconds']):.1f} | {max(one['seconds']):.1f}" if one["seconds"] else "- | -"
        yield f"| {name} | {one['runs']} | {one['found']} | {one['named']} | {took} |"


def _cost(part: Part | None) -> tuple[str, str, str, str]:
    # The app's cost for a step is measured within one training, because two trainings differ by more than that cost.
    what = (
        "processor time of the harness while it watches, share of the run's time ([in the training](training-speed.md))"
    )
    goal = f"under {COST_GOAL_PERCENT} % with that"
    if part is None:
        return what, goal, NOT_MEASURED, "-"
    shares = part["harness_percent"]
    middle, spread = median(shares), f"{min(shares):.2f} to {max(shares):.2f}"
    value = f"median {middle:.2f} % ({spread}) of {len(shares)} runs of {part['seconds']:.0f} s"
    return what, goal, value, "-" if middle < COST_GOAL_PERCENT else _met(reached=False)


def _met(reached: bool, enough: bool = True) -> str:
    if not reached:
        return "**not met**"
    return "met" if enough else "so far: fewer than asked for"


def _origin(title: str, part: Part | None) -> str:
    if part is None:
        return f"| {title} | {NOT_MEASURED} | - | - |"
    return f"| {title} | {part['when']} | {part['machine']} | `{part['command']}` |"


def _kinds(part: Part) -> Iterator[str]:
    yield "| kind | right | seconds to find: median, most | what was wrong |"
    yield "| --- | --- | --- | --- |"
    for name, kind in part["kinds"].items():
        seconds = kind["seconds"]
        took = f"{median(seconds):.1f}, {max(seconds):.1f}" if seconds else "-"
        yield f"| {name} | {kind['right']} of {kind['made']} | {took} | {_cell(kind['objections'])} |"
    for name, reason in part["skipped"].items():
        yield f"| {name} | skipped | - | {reason} |"


def _cell(objections: list[str]) -> str:
    """Return each objection once, on one line of a table."""
    text = " ".join("; ".join(dict.fromkeys(objections)).split()).replace("|", "\\|")
    return text[:LONGEST_CELL] or "-"
