"""Write a report as JUnit XML for continuous integration: a suite for each grid, a case for each cell."""

from xml.etree import ElementTree as Xml

from harness.base.text import printable
from harness.evidence.verdicts.recommend import NOT_TO_BE_USED
from harness.evidence.verdicts.verdict import Tier
from harness.report.model import GridPlace, Group, PassCount, Report, RunLine, VerdictLine

SKIPPED: tuple[Tier, ...] = ("untested", "excluded")
DECLARATION = "<?xml version='1.0' encoding='utf-8'?>"


def to_junit(report: Report) -> str:
    """Return the XML: a failing or flaky cell is a failure; an untested or excluded cell is skipped."""
    # A cell may have two verdicts: with uncommitted changes and without. The case is about the one in the grid.
    verdicts = {(one.group, one.cell, *_counted(one)): one for one in report.verdicts if not one.stale}
    # Runs are listed newest first; in reverse, the newest run of each key overwrites the older ones.
    failed = [run for run in reversed(report.runs) if run.failed and not run.uncounted]
    newest = {(run.group, run.cell, run.diagnosis): run for run in failed}
    root = Xml.Element("testsuites", name="matrix")
    for group in report.groups:
        suite = Xml.SubElement(root, "testsuite", name=_title(group))
        cases = [
            _case(suite, group, one, verdicts.get((group.id, one.cell, *_counted(one.count))), newest)
            for one in group.places
        ]
        suite.attrib |= {
            "tests": str(len(cases)),
            "failures": str(sum(place.count.tier in NOT_TO_BE_USED for place in group.places)),
            "errors": "0",
            "skipped": str(sum(place.count.tier in SKIPPED for place in group.places)),
        }
    Xml.indent(root)
    # XML does not allow control characters, not even escaped.
    return printable(f"{DECLARATION}\n{Xml.tostring(root, encoding='unicode')}\n")


def _counted(one: PassCount | VerdictLine) -> tuple[Tier, int, int]:
    return one.tier, one.passes, one.runs


def _title(group: Group) -> str:
    return f"{group.scope}.{group.workload}-{group.family[:8]}.{group.executor}.{group.host_kind}"


def _case(
    suite: Xml.Element,
    group: Group,
    place: GridPlace,
    verdict: VerdictLine | None,
    newest: dict[tuple[str, str, str | None], RunLine],
) -> Xml.Element:
    case = Xml.SubElement(suite, "testcase", name=place.cell, classname=_title(group))
    if verdict:
        values = {
            name: getattr(verdict, name) for name in ("tier", "passes", "runs", "low", "high", "imported", "last")
        }
        properties = Xml.SubElement(case, "properties")
        for name, value in values.items():
            Xml.SubElement(properties, "property", name=name, value=str(value))
    if place.count.tier in SKIPPED:
        Xml.SubElement(case, "skipped", message=place.reason or "not run")
    elif verdict and place.count.tier in NOT_TO_BE_USED:
        most = next(iter(verdict.diagnoses), None)
        run = newest.get((group.id, place.cell, most))
        said = f"{verdict.tier}: {verdict.passes} of {verdict.runs} runs completed"
        failure = Xml.SubElement(case, "failure", type=most or verdict.tier, message=said)
        failure.text = f"{run.run_id}: {run.detail}" if run else None
    return case
