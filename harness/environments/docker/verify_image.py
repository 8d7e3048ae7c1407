"""Verifies an image against its labels: it is rebuilt from the inputs that they name, and the two are compared."""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.base.errors import UnknownNameError, UserError
from harness.base.files.json_bounds import load_json
from harness.base.paths import CACHE, CHECKOUT
from harness.base.text import safe_text
from harness.environments.docker.image_tree import configured, differences_from, tree_of
from harness.environments.docker.images import (
    BASE_NAME,
    CELLS,
    IDENTITY,
    PREFIX,
    SHORT,
    Image,
    cell_labels,
    find,
    inputs_of,
    labelled_epochs,
)
from harness.environments.docker.rebuild import rebuilt
from harness.environments.docker.source_state import is_dirty, is_in_history, source_revision
from harness.host.engine import Engine
from harness.host.engine_errors import Notify
from harness.matrix.cells import Cell, Matrix

MAIN = "from harness.cli.main import main; main()"
# Folders of the cache shared with a checkout of another revision; their content is verified by hashes.
SHARED = ("wheels", "kernels", "locks", "debs")
# Set for the `matrix` of a checked-out revision: it compares or says why it cannot, but checks out no other revision.
CHECKED_OUT = "MATRIX_VERIFY_CHECKED_OUT"
# Git refuses to clone, so that a revision that does not know CHECKED_OUT cannot check out another one either.
NO_CLONES = {"GIT_ALLOW_PROTOCOL": "none"}
INFORMING = "org.opencontainers.image."
EQUAL, SAME_CONTENT, DIFFERENT = "same layers", "same content", "different"


@dataclass(frozen=True)
class Comparison:
    """The comparison of an image with the rebuilt one: the same layers, the same content, or the differences.

    `same_manifest`: whether the digests of the manifests are equal, too; None if the engine has no manifests. If only
    the manifests differ, the layers are compressed in another way, or labels that only inform differ.
    """

    image: str
    rebuilt: str
    revision: str | None
    same_layers: int
    layers: int
    differences: tuple[str, ...]
    same_manifest: bool | None = None

    @property
    def result(self) -> str:
        """The result in two words. Layers include the times of files; content is everything else."""
        if self.differences:
            return DIFFERENT
        return EQUAL if self.same_layers == self.layers else SAME_CONTENT

    @property
    def plain(self) -> dict[str, Any]:
        """The comparison as plain values."""
        return {**asdict(self), "result": self.result}


def verify_by_rebuilding(engine: Engine, image: Image, matrix: Matrix, notify: Notify) -> dict[str, Any]:
    """Rebuild the image of a cell from what its labels say, and return a `Comparison` as plain values.

    If the image was made from another revision, that revision is checked out elsewhere, and its own `matrix` compares.

    Raises:
        UserError: when the labels do not say enough, or the image cannot be rebuilt.
    """
    revision = image.revision
    cell = matrix.cells.get(image.labels.get(f"{PREFIX}.cell", ""))
    differing = _inputs_differing(engine, image, cell)
    checked_out = CHECKED_OUT in os.environ
    if cell and not differing and (checked_out or revision == source_revision()):
        return compare_with_rebuilt(engine, image, cell, notify).plain
    if checked_out:
        raise UserError(f"it was made from something else: {'; '.join(differing)}")
    if revision is None:
        raise UserError(f"{image.id}: names no revision of the source, and is not of this one; build it from a commit")
    if is_dirty(revision):
        raise UserError(f"{image.id}: was made from {revision}, changes that no commit has; build it from a commit")
    if not is_in_history(revision):
        # Refuse the revision, because anybody can write a label, and git keeps commits that nobody here has reviewed.
        raise UserError(
            f"{image.id}: says it was made from {safe_text(revision)}, and what is checked out here does not contain "
            "that commit; its code would run on this host: look at it, check it out, and give the command there"
        )
    return _by_checkout(image, revision, notify)


def compare_with_rebuilt(engine: Engine, image: Image, cell: Cell, notify: Notify) -> Comparison:
    """Rebuild the image of a cell from this checkout, and compare.

    Raises:
        UserError: when the image cannot be built.
    """
    with rebuilt(engine, cell, labelled_epochs(image.labels), notify) as again:
        same = sum(one == other for one, other in zip(image.layers, again.layers, strict=False))
        layers = max(len(image.layers), len(again.layers))
        found = _told_otherwise("", configured(engine, image), configured(engine, again))
        found += _told_otherwise("label ", _labels_with_effect(image), _labels_with_effect(again))
        if same < layers:
            notify("comparing file by file")
            found += differences_from(engine, image, tree_of(engine, again))
        # An engine that keeps manifests uses the digest of the manifest as the image's id.
        manifest = image.id == again.id if engine.keeps_compressed else None
        return Comparison(image.id, again.id, image.revision, same, layers, tuple(found), manifest)


def find_to_verify(engine: Engine, name: str) -> Image:
    """Return the image with a name, id, or cell.

    Raises:
        UserError: when the engine has no such image, or the image is not of a cell.
    """
    image = find(engine, name) or (find(engine, f"{CELLS}:{name}") if ":" not in name else None)
    if image is None:
        raise UnknownNameError(f"{name}: no such image here; `matrix pull` or `docker pull` brings it")
    if f"{PREFIX}.cell" not in image.labels:
        raise UserError(f"{name}: is not an image of a cell; `docker images vpoc` lists those that are")
    return image


def _inputs_differing(engine: Engine, image: Image, cell: Cell | None) -> list[str]:
    """Return the inputs in which an image differs from the image that this cell would have now, each in words."""
    if cell is None:
        return [f"matrix.yaml has no cell {image.labels.get(f'{PREFIX}.cell')}"]
    now = inputs_of(engine, cell.stack).identity
    pairs = [(part, image.identity[part], now[part]) for part in IDENTITY]
    recipe = f"{PREFIX}.cell-recipe"
    pairs.append(("preset", image.labels.get(recipe), cell_labels(cell, {})[recipe]))
    differing = [(part, one or "none", other or "none") for part, one, other in pairs if one != other]
    about = {"base": f"base image {cell.stack.base}"}
    return [f"{about.get(part, part)} is {there[:SHORT]}, not {wanted[:SHORT]}" for part, wanted, there in differing]


def _told_otherwise(kind: str, one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    differing = (name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name))
    return [f"{kind}{name}: {one.get(name)} and {other.get(name)}" for name in differing]


def _labels_with_effect(image: Image) -> dict[str, str]:
    """Return the labels without those that only inform: other programs obey some, such as `devcontainer.metadata`."""
    return {name: value for name, value in image.labels.items() if not name.startswith(INFORMING)}


def _by_checkout(image: Image, revision: str, notify: Notify) -> dict[str, Any]:
    """Check out the revision into a temporary folder, and let its own `matrix` compare.

    Raises:
        UserError: when the revision is not here, or its `matrix` fails.
    """
    with tempfile.TemporaryDirectory(prefix="matrix-verify-") as place:
        checkout = Path(place, "checkout")
        notify(f"checking out {revision}")
        clone = ["git", "clone", "--quiet", "--shared", "--no-checkout", str(CHECKOUT), str(checkout)]
        for words in (clone, ["git", "-C", str(checkout), "checkout", "--quiet", "--detach", revision]):
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                told = " ".join(done.stderr.split())[:200]
                raise UserError(f"revision {revision} of the source is not here: {told}; `git fetch` may bring it")
        (checkout / ".cache").mkdir()
        for name in SHARED:
            (CACHE / name).mkdir(parents=True, exist_ok=True)
            (checkout / ".cache" / name).symlink_to(CACHE / name)
        base = ("--base", image.labels[BASE_NAME]) if BASE_NAME in image.labels else ()
        command = [sys.executable, "-c", MAIN, *base, "verify", image.id, "--json"]
        done = subprocess.run(
            command,
            cwd=checkout,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **NO_CLONES, CHECKED_OUT: revision, "PYTHONPATH": ""},
        )
        compared: Any = None
        with suppress(ValueError):
            compared = load_json(done.stdout.encode())
        if not isinstance(compared, dict) or "result" not in compared:
            said = " ".join(done.stderr.split())[-400:]
            raise UserError(f"revision {revision}: cannot build it again: {said}")
        return compared
