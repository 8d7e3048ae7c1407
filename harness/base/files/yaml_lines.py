"""Reads YAML 1.2 as plain data that knows the line of each of its parts.

PyYAML's C parser composes the nodes and their lines. The meaning of plain words is decided here, by the core schema of
YAML 1.2: `yes`, `on` and `2026-11-22` are text, `012` is twelve and `1e-3` a number. Two equal keys are an error.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yaml import CSafeLoader, MappingNode, Node, ScalarNode, SequenceNode, YAMLError
from yaml.error import Mark, MarkedYAMLError
from yaml.resolver import BaseResolver

from harness.base.errors import UserError

YamlPath = Sequence[str | int]
MOST_BYTES = 1 << 18
"""Largest file, in bytes: every two bytes can be a node, which takes three hundred bytes in memory."""
DEEPEST = 100
"""Most nodes within each other."""
MOST_VALUES = 100_000
"""Most nodes, each counted as often as anchors name it: a few lines can make billions. Four characters count as one."""

# Longest integer, in characters: a 64-bit number in binary. Python cannot even print a number of some thousand digits.
LONGEST_INTEGER = 67

_TAG = "tag:yaml.org,2002:"
# For each tag: the pattern of its plain words, and their first letters.
_PLAIN = (
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)\Z", "tTfF"),
    ("null", r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    ("merge", r"<<\Z", "<"),
    ("int", r"[-+]?(?:0b[01][01_]*|0o[0-7][0-7_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|[0-9][0-9_]*)\Z", "-+0123456789"),
    (
        "float",
        r"(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN))\Z",
        "-+0123456789.",
    ),
)


class _Loader(CSafeLoader):
    """PyYAML's loader, with another meaning of plain words, and with a bound on nesting."""

    yaml_implicit_resolvers = BaseResolver.yaml_implicit_resolvers

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def descend_resolver(self, _parent: Node | None, _index: object) -> None:
        """Count a node that begins, because the C parser has no bound but the end of its stack."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise RecursionError

    def ascend_resolver(self) -> None:
        """Count a node that ends."""
        self._depth -= 1


for _name, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(_pattern), list(_first))


@dataclass(frozen=True)
class Document:
    """The content of a YAML file. `data`: dicts, lists, text, numbers, booleans and None."""

    data: Any
    _root: Node | None

    def line(self, where: YamlPath) -> int:
        """Return the line, counted from 1, of the last step of `where` that exists in the file.

        `where`: keys and list positions from the top. The line of an entry of a mapping is the line of its key.
        """
        node, line = self._root, 1
        for step in where:
            if isinstance(node, MappingNode):
                found = next(((key, value) for key, value in _entries(node) if key.value == str(step)), None)
                if found is None:
                    break
                at, node = found
            elif isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
                at = node = node.value[step]
            else:
                break
            line = at.start_mark.line + 1
        return line


def read_yaml(file: Path) -> Document:
    """Read a YAML file.

    Raises:
        OSError, UnicodeDecodeError: when the file cannot be read.
        UserError: `file:line: not valid YAML: what`.
    """
    with file.open("rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UserError(f"{file}: not valid YAML: it has more than {MOST_BYTES} bytes")
    return parse_yaml(content.decode("utf-8"), file)


def parse_yaml(text: str, file: Path) -> Document:
    """Return the content of `text`. `file`: named in errors.

    Raises:
        UserError: `file:line: not valid YAML: what`.
    """
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is not None and _size(root, {}) > MOST_VALUES:
            raise UserError(
                f"{file}: not valid YAML: it has more than {MOST_VALUES} values, with its anchors written out"
            )
        return Document(None if root is None else _Reader().value(root), root)
    except MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{file}{line}: not valid YAML: {error.problem}") from None
    except YAMLError as error:
        raise UserError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UserError(f"{file}: not valid YAML: it is nested too deeply") from None
    finally:
        loader.dispose()


def _size(node: Node, known: dict[int, int]) -> int:
    """Return how much of MOST_VALUES a node has with anchors written out; one that contains itself is refused later."""
    if isinstance(node, ScalarNode):
        return 1 + len(node.value) // 4
    if id(node) not in known:
        known[id(node)] = 1
        inner = node.value if isinstance(node, SequenceNode) else [part for entry in node.value for part in entry]
        known[id(node)] = 1 + sum(_size(part, known) for part in inner)
    return known[id(node)]


class _Reader:
    """Converts nodes to plain data. A node that an anchor names again becomes the same object again."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}
        self._open: set[int] = set()

    def value(self, node: Node) -> Any:
        """Return the data of a node.

        Raises:
            MarkedYAMLError: for a tag, a key or a merge that is not supported, two equal keys, or a loop of anchors.
        """
        if isinstance(node, ScalarNode):
            return _scalar(node)
        if id(node) not in self._known:
            if id(node) in self._open:
                raise _refused("an anchor that contains itself", node.start_mark)
            self._open.add(id(node))
            self._known[id(node)] = self._collection(node)
            self._open.remove(id(node))
        return self._known[id(node)]

    def _collection(self, node: Node) -> Any:
        if isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.value(item) for item in node.value]
        if not isinstance(node, MappingNode) or node.tag != f"{_TAG}map":
            raise _refused(f"the tag {node.tag!r} is not supported", node.start_mark)
        own: set[Hashable] = set()
        for key, _ in node.value:
            name = key.value if _is_merge(key) else self.value(key)
            if not isinstance(key, ScalarNode):
                raise _refused("a key must be one word or number", key.start_mark)
            if name in own:
                raise _refused(f"found duplicate key {name!r}", key.start_mark)
            own.add(name)
        data: dict[Any, Any] = {}
        for key, value in _entries(node):
            data.setdefault(self.value(key), self.value(value))
        return data


def _entries(node: MappingNode) -> Iterator[tuple[ScalarNode, Node]]:
    """Yield keys and values, a mapping's own before merged ones, so that the first of equal keys counts."""
    merged: list[Node] = []
    for key, value in node.value:
        if _is_merge(key):
            merged += value.value if isinstance(value, SequenceNode) else [value]
        else:
            yield key, value
    for other in merged:
        if not isinstance(other, MappingNode):
            raise _refused("only mappings can be merged", other.start_mark)
        yield from _entries(other)


def _is_merge(key: Node) -> bool:
    return key.tag == f"{_TAG}merge"


def _scalar(node: ScalarNode) -> Any:
    read = _SCALARS.get(node.tag)
    if read is None:
        raise _refused(f"the tag {node.tag!r} is not supported", node.start_mark)
    try:
        return read(node.value)
    except ValueError:
        raise _refused(
            f"{node.value[:LONGEST_INTEGER]!r} is no {node.tag.removeprefix(_TAG)}", node.start_mark
        ) from None


def _int(text: str) -> int:
    digits = text.replace("_", "")
    if len(digits) > LONGEST_INTEGER:
        raise ValueError(text)
    return int(digits, 0) if digits.lstrip("-+")[:2] in ("0b", "0o", "0x") else int(digits)


def _float(text: str) -> float:
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_SCALARS: dict[str, Callable[[str], Any]] = {
    f"{_TAG}str": str,
    f"{_TAG}int": _int,
    f"{_TAG}float": _float,
    f"{_TAG}bool": _bool,
    f"{_TAG}null": lambda _: None,
}


def _refused(problem: str, mark: Mark) -> MarkedYAMLError:
    return MarkedYAMLError(problem=problem, problem_mark=mark)
