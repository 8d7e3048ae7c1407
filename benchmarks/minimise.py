"""Measure how often a search names the variables that were planted in simulated runs.

Writes docs/evidence/minimise-figures.md.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from statistics import median

from harness.base.paths import CHECKOUT
from harness.search.minimise import VariableSet, minimise_variables

PAGE = CHECKOUT / "docs" / "evidence" / "minimise-figures.md"
PLANTED = {0: "none", 1: "one", 2: "a pair"}
RATES = (0.1, 0.5, 0.9)
VARIABLES = (6, 8, 11)
BUDGETS = (300, 1500)
CASES = 400
GOAL_PERCENT, WRONG_PERCENT = 95, 5


@dataclass(frozen=True)
class Setting:
    """A number of variables, of which only `planted` matter.

    Runs that the planted variables affect fail at `rate`; all other runs pass.
    """

    variables: int
    planted: int
    rate: float
    max_runs: int


@dataclass(frozen=True)
class Figures:
    """The results of a setting's searches: how many ended in which way, and the median number of runs."""

    setting: Setting
    found: int
    wrong: int
    none: int
    not_enough: int
    runs: float

    @property
    def cases(self) -> int:
        """The number of searches."""
        return self.found + self.wrong + self.none + self.not_enough

    @property
    def good_percent(self) -> float:
        """The percentage of searches that gave the planted answer, or said that the runs did not suffice."""
        right = self.none if self.setting.planted == 0 else self.found
        return 100 * (right + self.not_enough) / self.cases


def measure(setting: Setting, cases: int) -> Figures:
    """Search that many simulated histories; in every other one, the planted variables prevent failures instead."""
    answers: Counter[str] = Counter()
    runs = []
    for case in range(cases):
        random = Random(f"{setting} {case}")
        names = [f"V{number}" for number in range(setting.variables)]
        cause = frozenset(random.sample(names, setting.planted))
        helps = bool(case % 2)

        def run(
            variables: VariableSet, cause: VariableSet = cause, helps: bool = helps, random: Random = random
        ) -> bool:
            exposed = not cause or (cause <= variables) != helps
            return random.random() >= (setting.rate if exposed else 0)

        found = minimise_variables(names, run, setting.max_runs, case)
        right = found.variables == cause
        answers[found.conclusion if found.conclusion != "found" else "found" if right else "wrong"] += 1
        runs.append(found.runs)
    ended = (answers["found"], answers["wrong"], answers["no-difference"], answers["not-enough-runs"])
    return Figures(setting, *ended, runs=median(runs))


def page(figures: Sequence[Figures]) -> str:
    """Return the page as Markdown."""
    planted = [one for one in figures if one.setting.planted]
    nothing = [one for one in figures if not one.setting.planted]
    worst = min(one.good_percent for one in planted)
    wrong = max(100 * one.wrong / one.cases for one in figures)
    lines = [
        "# Figures on minimising",
        "",
        f"`make bench-minimise` wrote this page on {time.strftime('%Y-%m-%d', time.gmtime())}, from",
        f"{figures[0].cases} searches of simulated histories for each row. The planted variables cause failures at the",
        "given rate, or prevent them in every second search; all other runs pass. With nothing planted,",
        "every run fails at that rate.",
        "",
        "| what | goal | worst row | met |",
        "| --- | --- | --- | --- |",
        _goal("planted: that set is named, or it is said that runs did not suffice", GOAL_PERCENT, worst),
        _goal("nothing planted: a set is named", -WRONG_PERCENT, max(100 * one.wrong / one.cases for one in nothing)),
        _goal("anything: a wrong set is named", -WRONG_PERCENT, wrong),
        "",
        "| variables | planted | failure rate | runs allowed | planted set | wrong set | no difference shown "
        "| not enough runs | runs, median |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *map(_row, figures),
    ]
    return "\n".join(lines) + "\n"


def _goal(what: str, goal: int, percent: float) -> str:
    met = percent >= goal if goal > 0 else percent <= -goal
    wanted = f"at least {goal} %" if goal > 0 else f"at most {-goal} %"
    return f"| {what} | {wanted} | {percent:.1f} % | {'yes' if met else 'no'} |"


def _row(one: Figures) -> str:
    setting = one.setting
    ended = [f"{100 * n / one.cases:.1f} %" for n in (one.found, one.wrong, one.none, one.not_enough)]
    if not setting.planted:
        ended[0] = "-"
    first = [str(setting.variables), PLANTED[setting.planted], str(setting.rate), str(setting.max_runs)]
    return f"| {' | '.join([*first, *ended, f'{one.runs:.0f}'])} |"


def settings() -> Iterator[Setting]:
    """Yield every setting."""
    for max_runs, planted, rate, variables in product(BUDGETS, PLANTED, RATES, VARIABLES):
        yield Setting(variables, planted, rate, max_runs)


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES, help="searches of each setting")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--output", type=Path, default=PAGE)
    options = parser.parse_args()
    chosen = list(settings())
    with ProcessPoolExecutor(options.workers) as pool:
        measured = list(pool.map(measure, chosen, [options.cases] * len(chosen)))
    options.output.write_text(page(measured), encoding="utf-8")
    print(page(measured))


if __name__ == "__main__":
    main()
