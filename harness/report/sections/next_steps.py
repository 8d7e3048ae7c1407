"""The commands that the user should type next. Pure."""

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any

from harness.campaign.answered import Command
from harness.evidence.files.run_files import Explanation, Intent
from harness.evidence.verdicts.counting import REFUSED
from harness.evidence.verdicts.recommend import NOT_TO_BE_USED
from harness.evidence.verdicts.scope import parts_of
from harness.evidence.verdicts.verdict import Verdict
from harness.matrix.cells import Matrix
from harness.matrix.workload_options import arguments
from harness.report.invocation import (
    Invocation,
    changed_options,
    has_data_elsewhere,
    has_other_strategy,
    has_own_data,
    lookback_words,
    work_words,
)
from harness.report.sections.choice import Tags, towards_known_good
from harness.report.sections.failures import Failure

OWN_BARS = "merged.csv"
OUTPUT = "TRAINING"
OF_OTHER_DATA = "; those runs came without their bars: add --data FILE for yours, without it they are synthetic"


def what_next(
    best: Verdict | None,
    found: Sequence[Failure],
    explanations: Mapping[str, Explanation | None],
    tags: Tags,
    cells: Collection[str],
    intents: Mapping[str, Intent],
    matrix: Matrix,
    invocation: Invocation,
    made_here: Sequence[Verdict],
) -> tuple[Command, ...]:
    """Return commands, the most useful first. Each has the data, workload and executor of the runs that it follows.

    `best`: the verdict that the answer is about, or was about while it counted.
    `cells`: the cells that may be run.
    `intents`: by id, the intents of the newest run of `best`, of the newest failure, and of the newest run on bars of
    the user's own.
    `made_here`: as in `towards_known_good`.
    """
    if best is None:
        # Only a program of the user's own, or JAX, can have failed here: first explain why.
        run = Command(command=invocation.command("run"), why="runs the matrix on this host")
        return (*(_explaining(one, invocation) for one in found[:1]), *_of_refused(made_here, invocation), run)
    # More runs that are not verified would show nothing either.
    shows_nothing = not best.verified and not best.totals.starts
    steps = (
        []
        if best.tier in NOT_TO_BE_USED or shows_nothing
        else _towards_training(best, intents, tags, matrix, invocation, made_here)
    )
    failing = {cell for one in found for cell in one.cells}
    for one in found[:1]:
        explain = _explaining(one, invocation)
        explanation, failed = explanations.get(one.newest), intents.get(one.newest)
        remedies = [f"{one.stack}-{preset}" for preset in explanation.presets] if explanation else []
        tried = [
            Command(
                command=invocation.command("run", remedy, *(work_words(failed, matrix) if failed else ())),
                why=f"tries a preset that may help against `{one.diagnosis}`{_on_data(failed)}",
            )
            for remedy in [cell for cell in remedies if cell in cells and cell not in failing][:1]
            # `matrix run` has no option for the strategy. The other options that stages change are not essential here.
            if failed is None or not has_other_strategy(failed, matrix)
        ]
        # Where no cell works, trying a remedy is more useful than the evidence of the failure.
        steps += [explain, *tried] if steps else [*tried, explain]
    lists = "lists the runs of the best cell" + ", and why they were not verified" * shows_nothing
    status = Command(command=invocation.command("status", best.cell), why=lists)
    return tuple(steps) or (status,)


def _of_refused(made_here: Sequence[Verdict], invocation: Invocation) -> list[Command]:
    """Return the command that explains the newest run if the app refused its command: it would refuse it again."""
    newest = max(made_here, key=attrgetter("last_at"), default=None)
    if newest is None or newest.stale or set(newest.not_counted) != {REFUSED}:
        return []
    return [Command(command=invocation.command("explain", newest.last), why="shows what the app refused, and why")]


def training_meanwhile(
    best: Verdict | None, intents: Mapping[str, Intent], tags: Tags, matrix: Matrix, invocation: Invocation
) -> Command | None:
    """Return the command that trains in a cell with little evidence; None if `what_next` names it or nothing passed."""
    if best is None or best.tier not in ("seen", "candidate") or best.uncommitted or not _takes_training(best, matrix):
        return None
    intent = intents.get(best.last)
    changed = changed_options(intent, matrix) if intent and best.device != "cpu" else {}
    if changed and best.tier != "seen":
        return None
    train = _training(best, intents, tags, changed, invocation)
    return train.model_copy(
        update={"why": f"{train.why}, and resumes after a crash or a hang; too few runs show how often that will be"}
    )


def _takes_training(best: Verdict, matrix: Matrix) -> bool:
    """Return whether `matrix train` can train in the cell, since it accepts no interpreter of the user's own."""
    return best.stack not in matrix.stacks or matrix.stacks[best.stack].accelerator != "any"


def _explaining(failure: Failure, invocation: Invocation) -> Command:
    why = f"shows the evidence of the newest `{failure.diagnosis}`"
    return Command(command=invocation.command("explain", failure.newest), why=why)


def _towards_training(
    best: Verdict,
    intents: Mapping[str, Intent],
    tags: Tags,
    matrix: Matrix,
    invocation: Invocation,
    made_here: Sequence[Verdict],
) -> list[Command]:
    intent = intents.get(best.last)
    changed = changed_options(intent, matrix) if intent and best.device != "cpu" else {}
    if changed and (best.tier == "seen" or best.stale):
        # `matrix run` has no options for the changes that stages make, so run the stages again.
        work = work_words(intent, matrix, workload="") if intent else ()
        does = "runs it again" if best.stale else "continues it"
        return [Command(command=invocation.command("run", *work), why=f"{does}, in stages{_on_data(intent)}")]
    if best.uncommitted or best.stale:
        again = invocation.command("run", best.cell, *(work_words(intent, matrix) if intent else ()))
        when = "with what changed since" if best.stale else "once the changes in `git status` are committed"
        return [Command(command=again, why=f"runs it again, {when}{_on_data(intent)}")]
    train = [_training(best, intents, tags, changed, invocation)] if _takes_training(best, matrix) else []
    tagged = (best.cell, best.environment_hash, best.scope) in tags
    may_be_promoted = best.executor == "docker" and best.qualifies_for_promotion and not tagged
    more = towards_known_good(best, matrix, made_here)
    # A known-good cell that is the best of many may need more runs before it can be promoted.
    if (best.tier != "known-good" or (may_be_promoted and not more.missing.is_empty)) and not changed:
        work = work_words(intent, matrix, more.workload) if intent else ()
        takes = f"{more.missing.in_words}{more.why_more}"
        why = f"runs this cell until it is known-good: if nothing fails, after {takes}{_on_data(intent)}"
        on = Command(command=invocation.command("run", best.cell, "--until", "known-good", *work), why=why)
        good = best.tier in ("good", "known-good") and best.device != "cpu"
        return [*train, on] if good else [on]
    # Train with the changed options directly, because known-good tags do not record options that stages changed.
    if changed and best.tier != "known-good":
        return train
    if may_be_promoted:
        promote = invocation.command("promote", best.cell)
        return [Command(command=promote, why="gives its image the tag that training uses"), *train]
    return train


def _on_data(intent: Intent | None) -> str:
    return OF_OTHER_DATA if intent and has_data_elsewhere(intent) else ""


def _training(
    best: Verdict, intents: Mapping[str, Intent], tags: Tags, changed: Mapping[str, Any], invocation: Invocation
) -> Command:
    """Return the training on the user's bars: those that the cell was tried with, or the newest that any run had."""
    tried = sorted(intents.values(), key=lambda one: (one.run_id == best.last, one.started))
    own = next(filter(has_own_data, reversed(tried)), None)
    words = ["--data", own.data.path if own else OWN_BARS, "--output", OUTPUT]
    if (best.cell, best.environment_hash, best.scope) not in tags:
        words += ["--cell", best.cell, "--executor", best.executor]
    strategy = parts_of(best.scope).strategy
    if strategy != "single":
        words += ["--strategy", strategy]
    words += arguments({name: value for name, value in changed.items() if name != "strategy"})
    words += lookback_words(own) if own else ()
    why = "trains on these bars, to the end" if own else f"trains on your bars, to the end, once they are in {OWN_BARS}"
    return Command(command=invocation.command("train", *words), why=why)
