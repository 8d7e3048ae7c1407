from itertools import pairwise

from harness.report.markdown import to_markdown
from harness.report.model import Report


def test_a_table_has_as_many_cells_in_every_row(made_up: Report) -> None:
    lines = to_markdown(made_up).splitlines()
    for above, below in pairwise(lines):
        if above.startswith("|") and below.startswith("|"):
            assert above.replace("\\|", "").count("|") == below.replace("\\|", "").count("|")
    assert sum(line.startswith("|---") for line in lines) == len(made_up.groups) + 1


def test_the_answers_and_every_verdict_are_in_it(made_up: Report) -> None:
    markdown = to_markdown(made_up)
    for sentence in (*made_up.answers.use, *made_up.answers.notes, *made_up.answers.criteria, *made_up.cautions):
        assert sentence in markdown
    for verdict in made_up.verdicts:
        assert f"| {verdict.cell} |" in markdown
    for group in made_up.groups:
        for one in group.places:
            assert not one.count.runs or f"{one.count.tier} {one.count.passes} of {one.count.runs}" in markdown


def test_what_a_program_said_cannot_become_markup_or_a_column(made_up: Report) -> None:
    hostile = made_up.verdicts[0].model_copy(update={"ran_on": "<b>x</b> | y\n| z", "diagnoses": {"a|b": 1}})
    markdown = to_markdown(made_up.model_copy(update={"verdicts": (hostile,)}))
    assert "&lt;b>x&lt;/b> \\| y \\| z" in markdown
    assert "a\\|b x1" in markdown
