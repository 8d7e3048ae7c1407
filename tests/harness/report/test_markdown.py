from itertools import pairwise

from harness.campaign.answered import Command
from harness.report.markdown import to_markdown
from harness.report.model import Report


def test_a_table_has_as_many_cells_in_every_row(synthetic: Report) -> None:
    lines = to_markdown(synthetic).splitlines()
    for above, below in pairwise(lines):
        if above.startswith("|") and below.startswith("|"):
            assert above.replace("\\|", "").count("|") == below.replace("\\|", "").count("|")
    assert sum(line.startswith("|---") for line in lines) == len(synthetic.groups) + 1


def test_the_answers_and_every_verdict_are_in_it(synthetic: Report) -> None:
    markdown = to_markdown(synthetic)
    for sentence in (
        synthetic.answer.sentence,
        synthetic.answer.next.command,
        *synthetic.answer.failures,
        *synthetic.answers.use,
        *synthetic.answers.notes,
        *synthetic.answers.criteria,
        *synthetic.cautions,
    ):
        assert sentence in markdown
    for verdict in synthetic.verdicts:
        assert f"| {verdict.cell} |" in markdown
    for group in synthetic.groups:
        for one in group.places:
            assert not one.count.runs or f"{one.count.tier} {one.count.passes} of {one.count.runs}" in markdown


def test_a_command_of_the_answer_is_not_named_again(synthetic: Report) -> None:
    steps = [Command(command=f"matrix {name} X", why="does it") for name in ("first", "second", "third")]
    answers = synthetic.answers.model_copy(update={"next": steps})
    answer = synthetic.answer.model_copy(update={"next": steps[0], "train_now": steps[1]})
    text = to_markdown(synthetic.model_copy(update={"answer": answer, "answers": answers}))
    assert [text.count(step.command) for step in steps] == [1, 1, 1]


def test_what_a_program_said_cannot_become_markup_or_a_column(synthetic: Report) -> None:
    hostile = synthetic.verdicts[0].model_copy(update={"ran_on": "<b>x</b> | y\n| z", "diagnoses": {"a|b": 1}})
    group = synthetic.groups[0].model_copy(update={"host": "\n# <i>"})
    answer = synthetic.answer.model_copy(update={"failures": ("a run said ![](http://x/y) <img>",)})
    changes = {"answer": answer, "verdicts": (hostile,), "groups": (group, *synthetic.groups[1:])}
    markdown = to_markdown(synthetic.model_copy(update=changes))
    assert "host with # &lt;i>, executor" in markdown
    assert "&lt;b>x&lt;/b> \\| y \\| z" in markdown
    assert "a\\|b x1" in markdown
    assert "a run said !\\[]\\(http://x/y) &lt;img>" in markdown
