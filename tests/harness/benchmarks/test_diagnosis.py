"""The page of figures on the diagnosis."""

from benchmarks.diagnosis import FIRST_LOOKS, HELD_OUT, Answer, FirstLook, Thread, load, page

THREAD = Thread("https://github.com/x/y/issues/1", "a line", ("gpu-reset", "gpu-hang"))
NOTHING = Thread("https://github.com/x/y/issues/2", "epoch 1", ("unknown",), as_told=True)


def test_what_is_right_missed_and_wrong() -> None:
    judged = {name: Answer(THREAD, name, None).judgement for name in ("gpu-hang", "unknown", "stopped", "user-code")}
    assert judged == {"gpu-hang": "right", "unknown": "missed", "stopped": "missed", "user-code": "wrong"}
    # To name a failure where there is none is wrong too.
    assert Answer(NOTHING, "user-code", "x").judgement == "wrong"
    assert Answer(NOTHING, "unknown", None).judgement == "right"


def test_the_page_tells_first_looks_today_and_what_is_not_right() -> None:
    answers = [*[Answer(THREAD, "gpu-reset", "mes")] * 97, *[Answer(NOTHING, "unknown", None)] * 2]
    wrong = Answer(THREAD, "user-code", "python-exception")
    looks = [FirstLook("first", "abc", 90, 8, 2, (80, 15, 5)), FirstLook("second", "def", 8, 2, 0, (7, 3, 0))]
    text = page({"tuned": answers, "first": [*answers, wrong]}, looks)
    assert "| first | `abc` | 100 | 90 = 90.0 % (82.4 to 95.1) | 8 = 8.0 %" in text
    assert "| together | as above | 110 | 98 = 89.1 %" in text
    assert "| together | `7cc266e` | 110 | 87 = 79.1 %" in text
    assert "| tuned | 99 | 99 = 100.0 %" in text
    # One wrong of 100 is still good; without the lines that are written after a thread's words it is one of 195.
    assert "| first | 100 | 99 = 99.0 % (94.6 to 100.0) |" in text
    assert "| all, only lines as stored | 195 | 194 = 99.5 %" in text
    assert (text.count("| yes |"), text.count("| no |")) == (4, 6)
    assert (
        "| [x/y/issues/1](https://github.com/x/y/issues/1) | gpu-reset or gpu-hang | user-code | python-exception |"
        in text
    )


def test_the_first_looks_are_of_the_sets_that_are_there() -> None:
    assert [(one.name, one.right + one.missed + one.wrong) for one in FIRST_LOOKS] == [
        (name, len(load(file))) for name, file in HELD_OUT.items()
    ]
    assert all(sum(one.before) == one.right + one.missed + one.wrong for one in FIRST_LOOKS)
