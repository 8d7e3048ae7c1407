"""The page of figures on watching, made from the parts that were measured. Pure."""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

Part = Mapping[str, Any]

HANG_GOAL_SECONDS = 30
COST_GOAL_PERCENT = 1
KINDS_GOAL, REPEATS_GOAL, HEALTHY_GOAL = 20, 5, 200
NOT_MEASURED = "not measured"
LONGEST_CELL = 300
TITLES = {
    "faults-process": "injected faults as processes",
    "faults-docker": "injected faults in containers",
    "healthy": "healthy runs",
    "cost": "cost of watching",
}


def page(parts: Mapping[str, Part]) -> str:
    """The page, as Markdown. A part that is not there was not measured."""
    lines = [
        "# Figures on watching",
        "",
        "`make soak` wrote this page; the figures are also in [watching-figures.json](watching-figures.json). All",
        "of it is on a CPU: nothing here is about a GPU.",
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
    return "\n".join(lines) + "\n"


def figures(parts: Mapping[str, Part]) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each figure: name, goal, measured, met."""
    for name in ("faults-process", "faults-docker"):
        yield _injected_faults(TITLES[name], parts.get(name))
        yield from _hangs(TITLES[name], parts.get(name))
    yield _false_alarms(parts.get("healthy"))
    yield _cost(parts.get("cost"))


def _injected_faults(title: str, part: Part | None) -> tuple[str, str, str, str]:
    what = f"{title}: right outcome, class and rank, nothing left, next run completes"
    goal = f"{KINDS_GOAL} kinds x {REPEATS_GOAL}"
    kinds = part["kinds"].values() if part else ()
    if not kinds:
        return what, goal, NOT_MEASURED, "-"
    made, right = sum(kind["made"] for kind in kinds), sum(kind["right"] for kind in kinds)
    least = min(kind["made"] for kind in kinds)
    enough = len(kinds) >= KINDS_GOAL and least >= REPEATS_GOAL
    return (
        what,
        goal,
        f"{right} of {made} right: {len(kinds)} kinds, at least {least} each",
        _met(right == made, enough),
    )


def _hangs(title: str, part: Part | None) -> Iterator[tuple[str, str, str, str]]:
    found, named = f"{title}: hang found, steady step, at most", f"{title}: stuck rank named"
    hangs = [kind for kind in part["kinds"].values() if kind["hang"]] if part else []
    if not hangs:
        yield found, f"{HANG_GOAL_SECONDS} s", NOT_MEASURED, "-"
        yield named, "every time", NOT_MEASURED, "-"
        return
    seconds = [second for kind in hangs for second in kind["seconds"]]
    made, right = sum(kind["made"] for kind in hangs), sum(kind["named"] for kind in hangs)
    took = f"{max(seconds):.1f} s (median {median(seconds):.1f} s), " if seconds else ""
    in_time = sum(second <= HANG_GOAL_SECONDS for second in seconds)
    told = f"{took}{len(seconds)} of {made} hangs of {len(hangs)} kinds"
    yield found, f"{HANG_GOAL_SECONDS} s", told, _met(in_time == made)
    yield named, "every time", f"{right} of {made}", _met(right == made)


def _false_alarms(part: Part | None) -> tuple[str, str, str, str]:
    what, goal = "false alarms in healthy runs", f"0 of {HEALTHY_GOAL}"
    if part is None:
        return what, goal, NOT_MEASURED, "-"
    conditions = part["conditions"]
    runs, alarms = (sum(one[key] for one in conditions.values()) for key in ("runs", "alarms"))
    told = ", ".join(f"{one['runs']} {name}" for name, one in conditions.items())
    return what, goal, f"{alarms} of {runs}: {told}", _met(alarms == 0, runs >= HEALTHY_GOAL)


def _cost(part: Part | None) -> tuple[str, str, str, str]:
    # What the app adds to a step is measured within one training: two of them differ by more than that.
    what = (
        "processor time of the harness while it watches, share of the run's time ([in the training](training-speed.md))"
    )
    goal = f"under {COST_GOAL_PERCENT} % with that"
    if part is None:
        return what, goal, NOT_MEASURED, "-"
    shares = part["harness_percent"]
    middle, spread = median(shares), f"{min(shares):.2f} to {max(shares):.2f}"
    told = f"median {middle:.2f} % ({spread}) of {len(shares)} runs of {part['seconds']:.0f} s"
    return what, goal, told, "-" if middle < COST_GOAL_PERCENT else _met(reached=False)


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
    """Each once, on one line of a table."""
    text = " ".join("; ".join(dict.fromkeys(objections)).split()).replace("|", "\\|")
    return text[:LONGEST_CELL] or "-"
