from xml.etree import ElementTree as Xml

import pytest

from harness.report.junit import to_junit
from harness.report.model import Report


def suites(report: Report) -> list[Xml.Element]:
    return list(Xml.fromstring(to_junit(report)))


def test_every_place_is_a_case_with_the_verdict_as_its_result(synthetic: Report) -> None:
    for group, suite in zip(synthetic.groups, suites(synthetic), strict=True):
        for one, case in zip(group.places, suite.findall("testcase"), strict=True):
            assert case.get("name") == one.cell
            failed, skipped = case.find("failure"), case.find("skipped")
            assert (failed is not None) == (one.count.tier in ("failing", "flaky"))
            assert (skipped is not None) == (one.count.tier in ("untested", "excluded"))
            if failed is not None:
                assert f"{one.count.passes} of {one.count.runs} runs completed" in failed.get("message", "")
                assert (failed.text or "").startswith("synthetic-")


@pytest.mark.slow
def test_the_counts_of_a_suite_are_right(synthetic: Report) -> None:
    for suite in suites(synthetic):
        cases = suite.findall("testcase")
        for name, element in (("failures", "failure"), ("skipped", "skipped")):
            assert int(suite.get(name, "")) == sum(case.find(element) is not None for case in cases)
        assert int(suite.get("tests", "")) == len(cases)


def test_what_xml_cannot_hold_is_replaced(synthetic: Report) -> None:
    runs = tuple(run.model_copy(update={"detail": "a\x00\x1b\ud800]]>&<b>"}) for run in synthetic.runs)
    told = [
        case.text for suite in suites(synthetic.model_copy(update={"runs": runs})) for case in suite.iter("failure")
    ]
    assert told
    assert all((text or "").endswith(f"a{3 * chr(0xFFFD)}]]>&<b>") for text in told)
