import math
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.base.files.yaml_lines import DEEPEST, MOST_BYTES, parse_yaml, read_yaml
from harness.base.paths import CHECKOUT

FILE = Path("some.yaml")
OURS = [CHECKOUT / "matrix.yaml", *sorted((CHECKOUT / "harness").rglob("*.yaml"))]


def data(text: str) -> Any:
    return parse_yaml(text, FILE).data


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        # The core schema of YAML 1.2 (yaml.org/spec/1.2.2, 10.3.2), and underscores between digits.
        *((word, word) for word in ("yes", "No", "on", "OFF", "y", "n", "2026-11-22", "12:30", "1:30:00", "=", "0x_")),
        *((word, True) for word in ("true", "True", "TRUE")),
        *((word, False) for word in ("false", "False", "FALSE")),
        *((word, None) for word in ("", "~", "null", "Null", "NULL")),
        *(("012", 12), ("0o17", 15), ("0x1F", 31), ("0b11", 3), ("-7", -7), ("+7", 7), ("1_000", 1000)),
        *(("2.10", 2.1), ("6.", 6.0), (".5", 0.5), ("1e-3", 0.001), ("1E3", 1000.0), ("1_0.5", 10.5)),
        *((".inf", math.inf), ("-.INF", -math.inf)),
        *(("'2.10'", "2.10"), ('"yes"', "yes"), ("!!str 2.10", "2.10"), ("!!int 0o17", 15), ("!!bool 'true'", True)),
        *(("6.2.4", "6.2.4"), ("11.0.0", "11.0.0"), ("1.5.", "1.5."), ("-", [None]), ("<< x", "<< x")),
    ],
)
def test_what_a_plain_word_means(plain: str, expected: object) -> None:
    held = data(f"a: {plain}\n" if plain != "-" else "a:\n-\n")["a"]
    assert (held, type(held)) == (expected, type(expected))


def test_no_number_is_no_number() -> None:
    assert math.isnan(data(".nan"))


@pytest.mark.parametrize("file", OURS, ids=lambda file: file.name)
def test_our_own_files_hold_text_numbers_booleans_and_what_holds_those(file: Path) -> None:
    def look(held: object) -> None:
        if isinstance(held, dict):
            assert all(type(key) is str for key in held)
            for value in held.values():
                look(value)
        elif isinstance(held, list):
            for item in held:
                look(item)
        else:
            assert type(held) in (str, int, float, bool, type(None))

    look(read_yaml(file).data)


def test_versions_in_our_own_files_are_text() -> None:
    """If versions were numbers, 2.10 and 2.1 would be the same."""
    matrix = read_yaml(CHECKOUT / "matrix.yaml").data
    assert matrix["stacks"]["rocm7.0-torch2.10.0"] == {"accelerator": "rocm", "rocm": "7.0", "torch": "2.10.0"}
    assert list(matrix["stacks"])[:2] == ["cpu", "rocm6.2-torch2.5.1"]
    (wheels,) = (read_yaml(file).data["releases"] for file in OURS if file.name == "wheels.yaml")
    assert all(type(one) is str for row in wheels for key in ("torch", "rocm", "python") for one in row[key])


def test_anchors_and_merges() -> None:
    text = "a: &x {p: 1, q: 2}\nb: {<<: *x, p: 3, r: 4}\nc: {<<: [{q: 5}, *x]}\nd: [*x]"
    assert data(text) == {
        "a": {"p": 1, "q": 2},
        "b": {"p": 3, "r": 4, "q": 2},
        "c": {"q": 5, "p": 1},
        "d": [data(text)["a"]],
    }


@pytest.mark.parametrize("shape", ["[*before, *before]", "{<<: [*before, *before]}", "{a: *before, b: *before}"])
def test_a_few_lines_do_not_make_billions_of_values(shape: str) -> None:
    lines = ["x0: &x0 {a: 1}", *(f"x{n}: &x{n} {shape.replace('before', f'x{n - 1}')}" for n in range(1, 40))]
    with pytest.raises(UserError, match=r"some\.yaml: not valid YAML: it has more than 100000 values, with"):
        data("\n".join(lines))
    with pytest.raises(UserError, match="more than 100000 values, with its anchors written out"):
        data(f"x: [&x {'x' * 4000}{', *x' * 1000}]")


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000])
def test_a_number_that_cannot_be_printed_is_refused(number: str) -> None:
    with pytest.raises(UserError, match=r"is no int$"):
        data(f"a: {number}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "3: not valid YAML: found duplicate key 'a'"),
        ("a:\n  b: 1\n  'b': 2", "3: not valid YAML: found duplicate key 'b'"),
        ("1: a\n0x1: b", "2: not valid YAML: found duplicate key 1"),
        ("a: &x {}\nb: {<<: *x, <<: *x}", "2: not valid YAML: found duplicate key '<<'"),
        ("a: [1,\n}\n", "2: not valid YAML: did not find"),
        ("a: 1\n\tb: 2", "2: not valid YAML: found a tab character"),
        ("a: *nothing", "1: not valid YAML: found undefined alias"),
        ("\na: &x [*x]", "2: not valid YAML: an anchor that contains itself"),
        ("\n<<: 3", "2: not valid YAML: only mappings can be merged"),
        ("\na: !!set {x}", "2: not valid YAML: the tag 'tag:yaml.org,2002:set' is not supported"),
        ("\na: !mine x", "2: not valid YAML: the tag '!mine' is not supported"),
        ("\na: !!int x", "2: not valid YAML: 'x' is no int"),
        ("\na: !!bool yes", "2: not valid YAML: 'yes' is no bool"),
        ("\n? [a]\n: b", "2: not valid YAML: a key must be one word or number"),
        ("a: 1\n---\nb: 2", "2: not valid YAML: but found another document"),
    ],
)
def test_what_is_refused_is_reported_with_its_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        data(text)
    assert str(caught.value).startswith(f"{FILE}:{said}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: \x01", "control characters are not allowed"),
        ("[" * 100_000, "nested too deeply"),
        ("a: &x {<<: *x}", "nested too deeply"),
    ],
)
def test_what_has_no_line_is_refused_in_one(text: str, said: str) -> None:
    with pytest.raises(UserError, match=rf"^some.yaml: not valid YAML: .*{said}[^\n]*$"):
        data(text)


def test_nesting_has_a_bound() -> None:
    levels = DEEPEST - 1
    assert str(data("[" * levels + "]" * levels)).count("[") == levels
    with pytest.raises(UserError, match="nested too deeply"):
        data("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1))


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_file_has_a_bound(tmp_path: Path, beyond: int) -> None:
    """Ten megabytes of `1,1,1` take more than a gigabyte as nodes."""
    file = tmp_path / "some.yaml"
    file.write_bytes(b"a: 1 #".ljust(MOST_BYTES + beyond, b"-"))
    if beyond:
        with pytest.raises(UserError, match=r"some\.yaml: not valid YAML: it has more than 262144 bytes"):
            read_yaml(file)
    else:
        assert read_yaml(file).data == {"a": 1}


def test_lines_of_keys_and_items() -> None:
    text = "# comment\na:\n  b: &x\n    c: 1\nd:\n  - one\n  - e: 2\n    f:\n      3\ng:\n  <<: *x\n7: x\n"
    document = parse_yaml(text, FILE)
    lines = {
        (): 1,
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "b", "c"): 4,
        ("d", 0): 6,
        ("d", 1): 7,
        ("d", 1, "f"): 8,
        # A merged key has the line on which it is written.
        ("g", "c"): 4,
        (7,): 12,
        ("7",): 12,
        # A missing key or item has the line of the last step that exists.
        ("a", "x"): 2,
        ("d", 5): 5,
        ("d", "x"): 5,
        ("a", "b", "c", "z"): 4,
        ("nothing",): 1,
    }
    assert {where: document.line(where) for where in lines} == lines
    assert parse_yaml("", FILE).line(("a",)) == 1
