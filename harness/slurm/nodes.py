"""The nodes of a cluster, as each described itself: `hosts/nodes/NODE.json` in the results folder."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import Field, ValidationError

from harness.base.files.json_files import Moment, Versioned
from harness.base.files.storage import cannot_be_written, read_regular, write_durably
from harness.evidence.records import Results
from harness.host.facts import HostFacts

FOLDER = "hosts/nodes"
KIND_MARK = "nodes-"


class NodeFacts(Versioned):
    """`hosts/nodes/NODE.json`: the facts of a node, from a job that asked for them or from the last run there."""

    node: str
    host: HostFacts
    at: Moment = Field(description="seconds since 1970")


def note_node(results: Results, node: str, host: HostFacts) -> None:
    """Write the facts of a node. Raises UserError when the results folder cannot be written."""
    facts = NodeFacts(node=node, host=host, at=time.time())
    write_durably(_folder(results) / f"{node}.json", facts.model_dump_json(indent=2, by_alias=True).encode())


def known_nodes(results: Results) -> dict[str, HostFacts]:
    """Return the known facts of nodes by name; damaged files are ignored."""
    return {name: facts.host for name, facts in _told(results)}


def forget_booted(results: Results, boots: Mapping[str, float]) -> None:
    """Remove the facts of nodes that were booted since, because their kind may have changed.

    `boots`: when each node was booted, in seconds since 1970.

    Raises:
        UserError: when the results folder cannot be written.
    """
    for name, facts in _told(results):
        if facts.at < boots.get(name, facts.at):
            file = _folder(results) / f"{name}.json"
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise cannot_be_written(file, error) from None


def _told(results: Results) -> Iterator[tuple[str, NodeFacts]]:
    for file in sorted(_folder(results).glob("*.json")):
        with suppress(OSError, ValidationError):
            yield file.stem, NodeFacts.parse(read_regular(file))


def by_kind(nodes: Mapping[str, HostFacts], among: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the nodes in groups of one host kind: the largest group first, equal ones ordered by name."""
    groups: dict[str, list[str]] = {}
    for node in sorted(set(among) & nodes.keys()):
        groups.setdefault(nodes[node].kind, []).append(node)
    return sorted(map(tuple, groups.values()), key=lambda group: (-len(group), group))


def any_of_kind(host: HostFacts) -> HostFacts:
    """Return facts that represent all nodes of a kind: without machine and boot, so that no node's health applies."""
    name = f"{KIND_MARK}{host.kind}"
    return host.model_copy(update={"machine": name, "fingerprint": name, "boot_id": "", "former_fingerprints": ()})


def _folder(results: Results) -> Path:
    return results.folder / FOLDER
