"""Write a report as JUnit XML for continuous integration: a suite for each grid, a case for each cell."""

import re
from xml.etree import ElementTree as Xml

from harness.evidence.verdicts.verdict import Tier
from harness.report.model import GridPlace, Group, Report, RunLine, VerdictLine

FAILED: tuple[Tier, ...] = ("failing", "flaky")
SKIPPED: tuple[Tier, ...] = ("untested", "excluded")
# Characters that XML 1.0 does not allow, not even escaped.
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(report: Report) -> str:
    """Return the XML: a failing or flaky cell is a failure; an untested or excluded one is skipped."""
    verdicts = {(one.group, one.cell): one for one in report.verdicts if not one.stale}
    # Runs are newest first: the oldest one is overwritten last.
    failed = [run for run in reversed(report.runs) if run.outcome != "completed" and not run.uncounted]
    newest = {(run.group, run.cell, run.diagnosis): run for run in failed}
    root = Xml.Element("testsuites", name="matrix")
    for group in report.groups:
        suite = Xml.SubElement(root, "testsuite", name=_title(group))
        cases = [_case(suite, group, place, verdicts.get((group.id, place.cell)), newest) for place in group.places]
        suite.attrib |= {
            "tests": str(len(cases)),
            "failures": str(sum(place.count.tier in FAILED for place in group.places)),
            "errors": "0",
            "skipped": str(sum(place.count.tier in SKIPPED for place in group.places)),
        }
    Xml.indent(root)
    text: bytes = Xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return text.decode() + "\n"


def _title(group: Group) -> str:
    return f"{group.scope}.{group.workload}-{group.workload_hash[:8]}.{group.executor}.{group.host_kind}"


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
        Xml.SubElement(case, "skipped", message=_legal(place.reason or "not run"))
    elif verdict and place.count.tier in FAILED:
        most = next(iter(verdict.diagnoses), None)
        run = newest.get((group.id, place.cell, most))
        said = f"{verdict.tier}: {verdict.passes} of {verdict.runs} runs completed"
        failure = Xml.SubElement(case, "failure", type=_legal(most or verdict.tier), message=said)
        failure.text = _legal(f"{run.run_id}: {run.detail}") if run else None
    return case


def _legal(text: str) -> str:
    return NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
