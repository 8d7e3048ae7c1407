"""Finds words that tell apart verdicts on one cell, or families of one workload, which have the same names. Pure."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from harness.base.wording import some_of
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.row import Row
from harness.evidence.verdicts.verdict import Verdict
from harness.evidence.verdicts.words import work_in_words
from harness.matrix.programs import STDOUT
from harness.matrix.workload_options import AMOUNTS, arguments

# Most differences that are named; of more, the number is given.
NAMED = 3
# The words for the parts of an environment, by their names in records.
PARTS = {"app": "app", "lock": "packages", "interpreter": "Python", "base": "base image"}


def ambiguous_groups(verdicts: Iterable[Verdict]) -> list[list[Verdict]]:
    """Return groups of verdicts that cell, workload, data, scope and executor do not tell apart."""
    alike: dict[tuple[str, ...], list[Verdict]] = {}
    for one in verdicts:
        alike.setdefault((one.cell, work_in_words(one), one.scope, one.executor), []).append(one)
    return [together for together in alike.values() if len(together) > 1]


def what_differs(together: Sequence[Verdict], intents: Mapping[str, Intent]) -> dict[str, str]:
    """Return what differs for each of these verdicts, by the id of its newest run. `intents`: of those runs."""
    if any(one.last not in intents for one in together):
        intents = {}
    newest = max(together, key=lambda one: one.last_at)
    parts = {one.last: _parts(one, newest, intents) for one in together}
    said = _differing(parts)
    # Where no words tell them apart, the time of the last run does.
    given = list(said.values())
    return {
        one.last: said[one.last] if given.count(said[one.last]) == 1 and said[one.last] else _and_time(said, one)
        for one in together
    }


def families_apart(rows: Iterable[Row], read: Callable[[str], Record | None]) -> dict[str, str]:
    """Return what differs for each family of a workload's runs, where the workload has several families.

    `rows`: in the order of time.
    `read`: returns the record of a run, or None where it cannot be read.
    Families with the same words are told apart by a part of their hash.
    """
    newest: dict[str, dict[str, str]] = {}
    for row in rows:
        newest.setdefault(row.workload, {})[row.family] = row.run_id
    told: dict[str, str] = {}
    for families in newest.values():
        if len(families) > 1:
            records = {family: read(run_id) for family, run_id in families.items()}
            said = _differing({family: _option_words(one.intent) if one else {} for family, one in records.items()})
            given = list(said.values())
            told |= {
                family: words if words and given.count(words) == 1 else ", ".join(filter(None, [words, family[:8]]))
                for family, words in said.items()
            }
    return told


def _differing(parts: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return for each key the words of those parts that are not the same for all keys."""
    names = list(dict.fromkeys(name for known in parts.values() for name in known))
    differ = [name for name in names if len({known.get(name) for known in parts.values()}) > 1]
    said = {}
    for key, known in parts.items():
        said[key] = some_of([word for name in differ if (word := known.get(name))], NAMED)
    return said


def _and_time(said: Mapping[str, str], one: Verdict) -> str:
    last = f"last run {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(one.last_at))}"
    return f"{said[one.last]}, {last}" if said[one.last] else last


def _parts(one: Verdict, newest: Verdict, intents: Mapping[str, Intent]) -> dict[str, str]:
    """Return the parts that may tell a verdict from the others, in words, by what they are about."""
    intent, its = intents.get(one.last), intents.get(newest.last)
    parts = {"uncommitted": "uncommitted changes"} if one.uncommitted else {}
    if one.changed:
        parts["changed"] = "before the host changed"
    if intent is None or its is None:
        return parts
    parts |= _option_words(intent)
    if _version(intent) != _version(its):
        parts["version"] = "with earlier files of the program"
    parts |= {"kernel": f"kernel {intent.host.kernel}", "driver": f"driver {intent.host.driver}"}
    if one.environment_hash != newest.environment_hash:
        changed = [word for name, word in PARTS.items() if intent.environment.get(name) != its.environment.get(name)]
        parts["environment"] = f"with an earlier {' and '.join(changed) or 'environment'}"
    return parts


def _version(intent: Intent) -> str | None:
    return intent.program.taken.version if intent.program and intent.program.taken else None


def _option_words(intent: Intent) -> dict[str, str]:
    return {name: _option(name, value) for name, value in _options(intent).items() if name not in AMOUNTS}


def _options(intent: Intent) -> dict[str, Any]:
    """Return the options of a run; if it is a program of the user's own, the program's parts instead of the program."""
    program, own = intent.options.get("program"), {}
    if one := intent.program:
        own = {
            "command": " ".join(one.command),
            "variables": " ".join(f"{name}={value}" for name, value in one.environment.items()),
            "produces": [product.file for product in one.produces] or False,
            "progress": one.progress != STDOUT and one.progress,
        }
    return {**{name: value for name, value in intent.options.items() if value is not program}, **own}


def _option(name: str, value: Any) -> str:
    if name in ("command", "variables"):
        return str(value)
    return " ".join(arguments({name: value})) or f"without {'--' + name.replace('_', '-')}"
