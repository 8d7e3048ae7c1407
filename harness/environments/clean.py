"""Things of this checkout that can be made again: environments, copies of programs, images without a known-good tag.

Never wheels, records, or images that are tagged or came from a registry: those cost a download, or cannot be made
again.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from harness.base.files.storage import json_hash, locked
from harness.base.files.tree_removal import remove_below
from harness.base.paths import ENVIRONMENTS
from harness.environments.docker.images import CELLS, IDENTITY, PREFIX, RUNTIMES, STACKS, name_by_labels, tag_of_cell
from harness.environments.docker.own_images import own_ids
from harness.environments.environment import STAMP
from harness.environments.in_use import alone_with
from harness.environments.python.programs import PROGRAMS, remove_copy
from harness.host.engine import ENGINE_ERRORS, Engine, engine_errors, explain

# Repositories of this host alone. Some engines give the images in them a digest, too.
LOCAL = (CELLS, STACKS, RUNTIMES)
OF_A_COMMAND = "a command that makes environments or images, or runs cells, is under way"
# Other checkouts may use the same engine; what was pulled nobody here has made.
OF_ANOTHER = "this checkout has not made it"


@dataclass(frozen=True)
class Made:
    """An environment or what a program takes (by its folder), or an image (by its id). `kept`: why it is not removed.

    `bytes` are those that nothing else holds; of an image all of it, though images of the same `runtime` (what is below
    the app and the preset) share nearly all. `tags`: those that builds gave it.
    """

    kind: str
    name: str
    place: str
    bytes: int
    kept: str | None = None
    runtime: str | None = None
    tags: tuple[str, ...] = ()


def made_by_stacks(engine: Engine | None, environments: Path = ENVIRONMENTS, programs: Path = PROGRAMS) -> list[Made]:
    """Return the environments, copies of programs with their packages, and all images of stacks on this host.

    Images of other checkouts are kept as OF_ANOTHER.

    Raises:
        UserError: when the engine does not answer.
    """
    made = (file.parent for file in environments.glob(f"*/{STAMP}"))
    folders = [*_folders("environment", made), *_folders("program", programs.glob("*/"))]
    found = [*folders, *(_images(engine) if engine else ())]
    with alone_with(environments) as alone:
        return found if alone else [replace(one, kept=one.kept or OF_A_COMMAND) for one in found]


def bytes_to_go(found: Sequence[Made]) -> int:
    """Return about how many bytes are free once all is removed that may be: what images share is counted once.

    Where one of them stays nothing of it goes.
    """
    staying = {one.runtime for one in found if one.kept}
    shared: dict[str, int] = {}
    for one in found:
        if one.kept is None and one.runtime and one.runtime not in staying:
            shared[one.runtime] = max(one.bytes, shared.get(one.runtime, 0))
    return sum(shared.values()) + sum(one.bytes for one in found if one.kept is None and one.runtime is None)


def remove(
    chosen: Sequence[Made], engine: Engine | None, environments: Path = ENVIRONMENTS
) -> Iterator[tuple[Made, str | None]]:
    """Remove these; yield each with the reason why it is still there, None where it is gone."""
    with alone_with(environments) as alone:
        for one in chosen:
            if one.kept is None:
                yield one, _remove(one, engine) if alone else OF_A_COMMAND


def _remove(one: Made, engine: Engine | None) -> str | None:
    if one.kind == "program":
        remove_copy(Path(one.place))
        return "it cannot be removed" if Path(one.place).exists() else None
    return _remove_image(one, engine) if one.kind == "image" else _remove_environment(Path(one.place))


def _folders(kind: str, found: Iterable[Path]) -> Iterator[Made]:
    for folder in sorted(found):
        kept = f"process {pid} runs in it" if (pid := _process_in(folder)) else None
        yield Made(kind, folder.name, str(folder), _bytes_of(folder), kept)


def _images(engine: Engine) -> Iterator[Made]:
    with engine_errors("listing images"):
        found = engine.client.api.images(filters={"label": f"{PREFIX}.stack"})
    own = own_ids()
    # The newest first: some engines remove none that another was made from.
    for image in sorted(found, key=lambda image: int(image.get("Created", 0)), reverse=True):
        tags = [tag for tag in image.get("RepoTags") or () if tag != "<none>:<none>"]
        others = [tag for tag in tags if not _is_of_a_build(tag, image.get("Labels") or {})]
        remote = [one for one in image.get("RepoDigests") or () if one.partition("@")[0] not in (*LOCAL, "<none>")]
        kept = f"it is tagged {others[0]}" if others else f"it is {remote[0]} of a registry" if remote else None
        kept = kept if image["Id"] in own else OF_ANOTHER
        name = tags[0] if tags else image["Id"][:19]
        yield Made("image", name, image["Id"], int(image["Size"]), kept, _runtime(image), tuple(tags))


def _runtime(image: Mapping[str, Any]) -> str:
    """Return what tells the runtimes of images apart: what they are made from, but for the app and the preset."""
    labels = image.get("Labels") or {}
    return json_hash([labels.get(f"{PREFIX}.{part}") for part in ("stack", *IDENTITY) if part != "app"])


def _is_of_a_build(tag: str, labels: Mapping[str, str]) -> bool:
    """Return whether a tag is the one that each build gives: any other one was given by a promotion or by a person."""
    name, _, word = tag.rpartition(":")
    if name != CELLS:
        return name in LOCAL and word.startswith(f"{labels.get(f'{PREFIX}.stack')}-")
    # With the GPU targets, where it has code for those alone.
    named = name_by_labels(labels)
    return bool(named) and tag == tag_of_cell(named)


def _remove_image(one: Made, engine: Engine | None) -> str | None:
    if engine is None:
        return "no Docker engine answers"
    try:
        now = engine.client.api.inspect_image(one.place).get("RepoTags") or ()
        if given := sorted({*now} - {*one.tags}):
            # By its id it goes with all its tags of one repository.
            return f"it is tagged {given[0]} now"
        engine.client.api.remove_image(one.place, force=False)
    except ENGINE_ERRORS as error:
        return explain(error)
    return None


def _remove_environment(folder: Path) -> str | None:
    with locked(folder.with_name(f"{folder.name}.lock")):
        if pid := _process_in(folder):
            return f"process {pid} runs in it"
        # What is half removed is no environment.
        (folder / STAMP).unlink(missing_ok=True)
        parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return remove_below(parent, folder.name)
        finally:
            os.close(parent)


def _process_in(folder: Path) -> int | None:
    """Return a process whose interpreter is in a folder; None where there is none."""
    for process in psutil.process_iter():
        try:
            if process.cmdline()[:1] and Path(process.cmdline()[0]).is_relative_to(folder):
                return process.pid
        except (psutil.Error, OSError, IndexError):
            continue
    return None


def _bytes_of(folder: Path) -> int:
    """Return the bytes that are free once a folder is gone: files that another name holds stay."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                found = (Path(place) / name).lstat()
            except FileNotFoundError:
                # Another command of this kind removes it now.
                continue
            total += found.st_blocks * 512 if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 else 0
    return total
