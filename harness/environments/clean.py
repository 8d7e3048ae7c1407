"""Finds and removes what this checkout can make again: environments, copies of programs, and images.

Wheels, records, and images that are tagged or came from a registry are never removed, because they cost a download or
cannot be made again.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.base.files.hashes import json_hash
from harness.base.files.locks import locked
from harness.base.files.tree_removal import remove_below
from harness.base.paths import ENVIRONMENTS
from harness.environments.docker.images import CELLS, IDENTITY, PREFIX, RUNTIMES, STACKS, name_by_labels, tag_of_cell
from harness.environments.docker.own_images import own_ids
from harness.environments.environment import STAMP
from harness.environments.in_use import process_in, try_exclusive_use
from harness.environments.python.programs import PROGRAMS, remove_copy
from harness.host.engine import Engine
from harness.host.engine_errors import ENGINE_ERRORS, engine_errors, explain

# Repositories that exist on this host only. Some engines give images in them a digest, too.
LOCAL = (CELLS, STACKS, RUNTIMES)
OF_A_COMMAND = "a command that makes environments or images, or runs cells, is under way"
# Other checkouts may use the same engine, and nobody here made what was pulled.
OF_ANOTHER = "this checkout has not made it"


@dataclass(frozen=True)
class Made:
    """An environment, a copy of a program, or an image.

    Attributes:
        place: the folder, or the id of an image.
        bytes: the bytes that nothing else holds. For an image these are all its bytes, although images of the same
            `runtime` share nearly all of them.
        kept: why it is not removed; None if it may be.
        runtime: identifies what is in an image below the app and the preset.
        tags: the tags of an image when it was listed.
    """

    kind: str
    name: str
    place: str
    bytes: int
    kept: str | None = None
    runtime: str | None = None
    tags: tuple[str, ...] = ()


def made_by_stacks(engine: Engine | None, environments: Path = ENVIRONMENTS, programs: Path = PROGRAMS) -> list[Made]:
    """Return the environments, the copies of programs with their packages, and all images of stacks on this host.

    Images of other checkouts have OF_ANOTHER as `kept`.

    Raises:
        UserError: when the engine does not answer.
    """
    made = (file.parent for file in environments.glob(f"*/{STAMP}"))
    folders = [*_folders("environment", made), *_folders("program", programs.glob("*/"))]
    found = [*folders, *(_images(engine) if engine else ())]
    with try_exclusive_use(environments) as alone:
        return found if alone else [replace(one, kept=one.kept or OF_A_COMMAND) for one in found]


def bytes_to_go(found: Sequence[Made]) -> int:
    """Return about how many bytes become free if everything that may be removed is removed.

    Bytes that images share are counted once, and not at all if one of these images stays.
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
    """Remove what was chosen, and yield each item with the reason why it is still there, or None if it is gone."""
    with try_exclusive_use(environments) as alone:
        for one in chosen:
            if one.kept is None:
                yield one, _remove(one, engine) if alone else OF_A_COMMAND


def _remove(one: Made, engine: Engine | None) -> str | None:
    if one.kind == "image":
        return _remove_image(one, engine)
    try:
        if one.kind == "environment":
            return _remove_environment(Path(one.place))
        return remove_copy(Path(one.place))
    except OSError as error:
        # It may be another user's, in a folder that both may write to.
        return error.strerror or str(error)


def _folders(kind: str, found: Iterable[Path]) -> Iterator[Made]:
    for folder in sorted(found):
        kept = f"process {pid} runs in it" if (pid := process_in(folder)) else None
        # What is behind it was not made here.
        kept = "it is a link" if folder.is_symlink() else kept
        yield Made(kind, folder.name, str(folder), _bytes_of(folder), kept)


def _images(engine: Engine) -> Iterator[Made]:
    with engine_errors("listing images"):
        found = engine.client.api.images(filters={"label": f"{PREFIX}.stack"})
    own = own_ids()
    # Remove the newest first, because some engines remove no image that another one was made from.
    for image in sorted(found, key=lambda image: int(image.get("Created", 0)), reverse=True):
        tags = [tag for tag in image.get("RepoTags") or () if tag != "<none>:<none>"]
        others = [tag for tag in tags if not _is_of_a_build(tag, image.get("Labels") or {})]
        remote = [one for one in image.get("RepoDigests") or () if one.partition("@")[0] not in (*LOCAL, "<none>")]
        kept = f"it is tagged {others[0]}" if others else f"it is {remote[0]} of a registry" if remote else None
        kept = kept if image["Id"] in own else OF_ANOTHER
        name = tags[0] if tags else image["Id"][:19]
        yield Made("image", name, image["Id"], int(image["Size"]), kept, _runtime(image), tuple(tags))


def _runtime(image: Mapping[str, Any]) -> str:
    """Return the identity of an image's runtime: everything that it is made from, except the app and the preset."""
    labels = image.get("Labels") or {}
    return json_hash([labels.get(f"{PREFIX}.{part}") for part in ("stack", *IDENTITY) if part != "app"])


def _is_of_a_build(tag: str, labels: Mapping[str, str]) -> bool:
    """Return whether a build gave an image this tag; all other tags were given by a promotion or a person."""
    name, _, word = tag.rpartition(":")
    if name != CELLS:
        return name in LOCAL and word.startswith(f"{labels.get(f'{PREFIX}.stack')}-")
    # The tag includes the GPU targets if the image has code for these only.
    named = name_by_labels(labels)
    return bool(named) and tag == tag_of_cell(named)


def _remove_image(one: Made, engine: Engine | None) -> str | None:
    if engine is None:
        return "no Docker engine answers"
    try:
        now = engine.client.api.inspect_image(one.place).get("RepoTags") or ()
        if given := sorted({*now} - {*one.tags}):
            # Keep the image, because removing it by id would also remove tags that were added since.
            return f"it is tagged {given[0]} now"
        engine.client.api.remove_image(one.place, force=False)
    except ENGINE_ERRORS as error:
        return explain(error)
    return None


def _remove_environment(folder: Path) -> str | None:
    with locked(folder.with_name(f"{folder.name}.lock")):
        if pid := process_in(folder):
            return f"process {pid} runs in it"
        # Remove the stamp first, because a half-removed environment must not count as one.
        (folder / STAMP).unlink(missing_ok=True)
        parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return remove_below(parent, folder.name)
        finally:
            os.close(parent)


def _bytes_of(folder: Path) -> int:
    """Return the bytes that become free if a folder is removed; files with another name elsewhere do not count."""
    total = 0
    # The walk recurses before Python 3.12, and a run may have nested a thousand folders in a program's copy.
    with suppress(RecursionError):
        for place, _, names in os.walk(folder):
            for name in names:
                try:
                    found = (Path(place) / name).lstat()
                except OSError:
                    # Another command is removing it now, or another user hides it.
                    continue
                total += found.st_blocks * 512 if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 else 0
    return total
