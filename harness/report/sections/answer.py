"""The answer of a results folder: one sentence, the grid, what failed, and one command. Pure.

The terminal, the page, the Markdown and `--json` all print what `answer_of` returns.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import floor

from harness.base.wording import listed, many
from harness.campaign.answered import NO_ANSWER, LastAnswer
from harness.environments.docker.images import cell_tag
from harness.evidence.verdicts.counting import REFUSED
from harness.evidence.verdicts.expectation import expectation_of_totals
from harness.evidence.verdicts.recommend import (
    NOT_TO_BE_USED,
    TIERS,
    NamedCell,
    best_by_scope,
    most_useful,
)
from harness.evidence.verdicts.scope import ScopeParts, parts_of
from harness.evidence.verdicts.verdict import Tier, Verdict
from harness.evidence.verdicts.words import UNCOMMITTED, hours_in_words, in_words, mtbf_in_words, work_in_words
from harness.matrix.cells import Matrix
from harness.report.model import Answer, AnswerGrid, AnswerPlace
from harness.report.sections.choice import Tags
from harness.report.sections.failures import what_fails
from harness.report.sections.grid import Key, key_of
from harness.report.sections.of_host import OfHost
from harness.report.words import at_least
from harness.training.expect import USUAL_HOURS

FAILURES_SHOWN = 3


def answer_of(
    known: OfHost,
    matrix: Matrix,
    gpus: int,
    last: LastAnswer = NO_ANSWER,
    criteria: str = "",
    ids: Mapping[Key, str] | None = None,
) -> Answer:
    """Return the answer for one kind of host.

    `known`: what the records show on this kind of host.
    `gpus`: the number of GPUs of the host.
    `last`: the answer of the last campaign. The conclusion of one that has just ended becomes the answer, and later
    answers are about the cell that it named.
    `criteria`: a clause on the criteria of the notes, by the runs that count on this kind of host.
    `ids`: the ids of the groups.
    """
    here, trained_in, tags, step = known.here, known.trained_in, known.tags, known.steps[0]
    best = most_useful(trained_in, last.named)
    if last.sentence:
        claim = last.sentence
        if not last.of_program:
            claim += _of_named(best, last.named, tags, matrix) + _outdated(last.named, here)
    else:
        of = "so far" if best == most_useful(trained_in) else "of the last campaign"
        claim = _sentence(best, known, matrix.verdicts.confidence, gpus, of)
    if best is None and (others := best_by_scope(here)):
        claim = _of_those_that_name_none(others, last.sentence)
    return Answer(
        sentence=f"{claim} {criteria[0].upper()}{criteria[1:]}." if criteria else claim,
        grids=_grids(here, matrix, ids or {}, best, of_program=last.of_program),
        failures=(
            *filter(None, [known.resets]),
            *(what_fails(here, known.found, known.explained)[:FAILURES_SHOWN] if known.found else ()),
        ),
        next=step,
        train_now=None if last.of_program or known.train_now == step else known.train_now,
    )


def _outdated(named: NamedCell | None, here: Sequence[Verdict]) -> str:
    """Return that all runs of the cell that a conclusion names are stale; empty where they are not."""
    own = [one for one in here if NamedCell(one.cell, parts_of(one.scope).strategy) == named]
    if not own or not all(one.stale for one in own):
        return ""
    return " But all its runs are stale: the app, its packages, the preset or this host changed since."


def _of_named(best: Verdict | None, named: NamedCell | None, tags: Tags, matrix: Matrix) -> str:
    """Return how the cell that a conclusion names ran, and what a training in it can expect."""
    if best is None or NamedCell(best.cell, parts_of(best.scope).strategy) != named:
        return ""
    clauses = [_ran_as(best, tags, matrix), _prospect(best, matrix.verdicts.confidence)]
    return f" {'; '.join(clause for clause in clauses if clause)}."


def _ran_as(best: Verdict, tags: Tags, matrix: Matrix) -> str:
    if best.executor == "process":
        return f"It ran as processes in the environment of stack `{best.stack}`"
    tag = tags.get((best.cell, best.environment_hash, best.scope))
    return f"It ran in image `{tag or cell_tag(matrix.cells[best.cell])}`"


def _sentence(best: Verdict | None, known: OfHost, confidence: float, gpus: int, of: str) -> str:
    here, tags = known.trained_in, known.tags
    if best is None:
        stale = sum(one.runs for one in here if one.stale)
        are = f"; {many(stale, 'run')} {'is' if stale == 1 else 'are'} stale"
        since = f"{are}: the app, its packages, the preset or this host changed since" if stale else ""
        hours = sum(one.totals.hours for one in here if not one.runs)
        alone = f"; the interrupted ones trained {hours_in_words(hours)}" if hours else ""
        refused = listed(dict.fromkeys(f"`{one.cell}`" for one in here if not one.stale and REFUSED in one.not_counted))
        by_app = f"; the app refused its command in {refused}" if refused else ""
        kinds = "others (this host with another kernel, driver or firmware is one)"
        made = f"; made on {kinds}: {many(known.elsewhere, 'counted run')}" if known.elsewhere else ""
        return f"No run on this kind of host counts yet{alone}{by_app}{since}{made}."
    clauses = [_claim(best, here, tags, of), _prospect(best, confidence), *_of_other_counts(best, here, gpus)]
    if best.device == "cpu":
        clauses.append("it says nothing about GPUs")
    return f"{'; '.join(clause for clause in clauses if clause)}."


def _claim(best: Verdict, here: Sequence[Verdict], tags: Tags, of: str) -> str:
    place, cell = parts_of(best.scope).in_words, f"`{best.cell}`"
    tag = tags.get((best.cell, best.environment_hash, best.scope))
    named = f"{cell} (image `{tag}`)" if tag else cell
    if best.tier in NOT_TO_BE_USED:
        return f"No cell is yet shown to train to the end on {place}: {_why_none(best, here)}"
    shown = f"{in_words(best.totals)}, workload `{work_in_words(best)}`"
    if best.uncommitted:
        return f"{cell} trained on {place}, {shown}, but {UNCOMMITTED}, so that it is `seen` at most"
    if best.tier == "seen":
        few = f"Too few runs yet to name a cell that trains to the end on {place}"
        return f"{few}: the most promising {of} is {named}, {shown}"
    return f"Use {named} on {place}, which is {best.tier}: {shown}"


def _why_none(best: Verdict, here: Sequence[Verdict]) -> str:
    """Return what failed on the devices of `best`, and why most often."""
    tried = [one for one in here if one.scope == best.scope and one.runs and not one.stale]
    if any(one.passes for one in tried):
        tried, failed = [best], f"the best, `{best.cell}`, is {best.tier}, {_failed(best)}"
    else:
        # Where nothing passed, no cell is better than another.
        runs, cells = sum(one.runs for one in tried), {one.cell for one in tried}
        which = f"all {runs:,} runs" if runs > 1 else "the only run"
        failed = f"{which} of {f'`{best.cell}`' if len(cells) == 1 else f'{len(cells)} cells'} failed"
    diagnoses = sum((Counter(one.diagnoses) for one in tried), Counter[str]())
    return f"{failed}, most often for `{diagnoses.most_common(1)[0][0]}`" if diagnoses else failed


def _of_those_that_name_none(others: Sequence[Verdict], concluded: str | None) -> str:
    """Return why the runs that count name no cell to train in; for a campaign of a program, its conclusion."""
    if any(one.own_program for one in others):
        return concluded or (
            "On this kind of host no run of this project's training counts yet: "
            "of programs of your own the numbers are not checked, and no cell is named by them."
        )
    return "On this kind of host only runs of JAX count, which tell whether it is PyTorch; nothing trains with it."


def _failed(one: Verdict) -> str:
    return f"{one.runs - one.passes} of {one.runs} runs failed"


def _prospect(best: Verdict, confidence: float) -> str:
    """Say what a training of the usual length can expect; empty if the cell is not to be used."""
    if best.tier in NOT_TO_BE_USED:
        return ""
    if best.tier == "seen":
        little = f"that is too little to say what {USUAL_HOURS:g} h of training can expect"
        return f"{little}, and more runs may put another cell or workload first"
    return expectation_of_totals(best.totals, USUAL_HOURS, confidence).in_words


def _of_other_counts(best: Verdict, here: Sequence[Verdict], gpus: int) -> list[str]:
    """Say what is known about several GPUs together, if the answer is about one of them."""
    if best.device == "cpu" or gpus < 2 or parts_of(best.scope).devices > 1:  # noqa: PLR2004
        return []
    together = [one for one in best_by_scope(here) if one.device != "cpu" and parts_of(one.scope).devices > 1]
    if not together:
        return [f"on {ScopeParts('', gpus, 'single', simulated=False).count} GPUs nothing was run"]
    other = max(together, key=lambda one: TIERS.index(one.tier))
    what = _failed(other) if other.tier in NOT_TO_BE_USED else in_words(other.totals)
    return [f"on {parts_of(other.scope).in_words} the best, `{other.cell}`, is {other.tier}, {what}"]


def _grids(
    here: Sequence[Verdict], matrix: Matrix, ids: Mapping[Key, str], best: Verdict | None, *, of_program: bool
) -> tuple[AnswerGrid, ...]:
    """Return a grid of stacks and presets for each scope: GPUs before the CPU, more before fewer, the answer's first.

    `best` is the verdict that the answer is about: beside it other figures of the same cell would contradict it. If the
    answer is `of_program`, programs of the user's own have grids of their own, which come first. Otherwise they are
    shown only for cells in which nothing else ran.
    """
    scopes: dict[tuple[bool, str], dict[str, Verdict]] = {}

    def weight(one: Verdict) -> tuple[bool, bool, bool, bool, float, int]:
        comparable = best is not None and key_of(one) == key_of(best)
        first = one.runs > 0, not one.own_program
        return *first, comparable, one.qualifies_for_promotion, one.totals.hours, one.runs

    for one in here:
        if one.stale:
            continue
        cells = scopes.setdefault((of_program and one.own_program, one.scope), {})
        # Among several workloads prefer the answer's own, else the one with the most evidence; runs that count come
        # first.
        if one.cell not in cells or weight(one) > weight(cells[one.cell]):
            cells[one.cell] = one

    def order(key: tuple[bool, str]) -> tuple[bool, bool, int, bool, str]:
        by_program, scope = key
        parts = parts_of(scope)
        is_of_answer = best is not None and scope == best.scope
        return not by_program, parts.device == "cpu", -parts.devices, not is_of_answer, scope

    return tuple(_grid(key[1], scopes[key], matrix, ids) for key in sorted(scopes, key=order))


def _grid(scope: str, cells: Mapping[str, Verdict], matrix: Matrix, ids: Mapping[Key, str]) -> AnswerGrid:
    works = Counter(one.workload for one in cells.values() if one.runs)
    usual = works.most_common(1)[0][0] if works else None
    stacks = _in_order({one.stack for one in cells.values()}, matrix.stacks)
    presets = _in_order({one.preset for one in cells.values()}, matrix.presets)
    # The sentence above may be that of a campaign, which has no imported runs.
    imported = sum(one.imported for one in cells.values())
    with_ = f", with {many(imported, 'imported run')}" if imported else ""
    return AnswerGrid(
        scope=scope,
        title=f"On {parts_of(scope).in_words}{f', workload {usual}' if usual else ''}{with_}",
        stacks=stacks,
        presets=presets,
        places=tuple(_place(stack, preset, cells, matrix, ids, usual) for preset in presets for stack in stacks),
    )


def _place(
    stack: str, preset: str, cells: Mapping[str, Verdict], matrix: Matrix, ids: Mapping[Key, str], usual: str | None
) -> AnswerPlace:
    """Return a cell of a grid. Its workload is named unless it is `usual`, the one of the grid's title."""
    cell = f"{stack}-{preset}"
    one, known = cells.get(cell), matrix.cells.get(cell)
    tier: Tier = "untested"
    if one is not None:
        tier = one.tier
    elif known is not None and known.excluded:
        tier = "excluded"
    group = ids.get(key_of(one)) if one else None
    if one is None or not one.runs:
        reason = known.excluded if known and tier == "excluded" else None
        return AnswerPlace(cell=cell, tier=tier, text=tier, group=group, reason=reason)
    return AnswerPlace(
        cell=cell,
        tier=tier,
        text=f"{one.passes}/{one.runs} {tier}",
        work="" if one.workload == usual else one.workload,
        group=group,
        start_low=floor(one.start_low * 1000) / 1000,
        starts=f"starts above {at_least(one.start_low)}",
        mtbf=mtbf_in_words(one.totals, one.mtbf_low),
    )


def _in_order(used: Collection[str], order: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in order if name in used)
