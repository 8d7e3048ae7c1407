"""The inputs of images, and how to ask an engine for an image. Labels identify an image; tags are only for people."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import ImageNotFound
from docker.utils import parse_repository_tag

from harness import __version__
from harness.base.contract import CONTRACT, OLD_CONTRACT
from harness.base.errors import UserError
from harness.base.files.hashes import file_hash, json_hash
from harness.base.paths import APP, CHECKOUT, IMAGES
from harness.environments.docker import layers
from harness.environments.docker.dockerfile import cell_part, stack_part
from harness.environments.docker.source_state import newest_of, oci_time, source_revision
from harness.environments.environment import Environment, app_hash, image_environment
from harness.environments.python.pins import base_digest, lock_file, pins_file, pins_hash
from harness.host.engine import Engine
from harness.host.engine_client import TooLargeAnswerError
from harness.host.engine_errors import engine_errors
from harness.matrix.cells import Cell
from harness.matrix.stacks import Stack

# Local repositories: people use cells, which are made from stacks, which are made from runtimes.
CELLS, STACKS, RUNTIMES = "vpoc", "vpoc-stack", "vpoc-runtime"
DOCKER_HUB = "docker.io/"
PREFIX = "vpoc.matrix"
INPUTS = f"{PREFIX}.inputs"
REVISION = "org.opencontainers.image.revision"
CREATED = "org.opencontainers.image.created"
# The times of files below the app and in the app; a rebuilt image gets the same.
EPOCHS = f"{PREFIX}.epochs"
CONTRACT_LABEL = f"{PREFIX}.contract"
BASE_NAME, BASE_DIGEST = "org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"
SHORT = 12
# Most bytes of the labels of an image that can be ours: a build gets each label as an argument.
MOST_LABEL_BYTES = 1 << 16
TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
# The inputs that decide the behaviour of a stack, each with a label.
IDENTITY = ("base", "lock", "app", "recipe")
# Files that are used inside a build.
TEMPLATE, TOOLS = "Dockerfile.j2", ("install.py", "verify.py")
# The module that decides in which layer a file of torch lies.
LAYERS = Path(layers.__file__)
COMPILER_LOCK = CHECKOUT / "requirements-compiler.txt"


@dataclass(frozen=True)
class Image:
    """An image that an engine holds."""

    id: str
    labels: Mapping[str, str]
    layers: tuple[str, ...]
    size: int
    tags: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()

    @property
    def identity(self) -> dict[str, Any]:
        """The labels that decide the behaviour of the image's stack, for the environment hash."""
        return {part: self.labels.get(f"{PREFIX}.{part}") for part in IDENTITY}

    @property
    def revision(self) -> str | None:
        """The commit that the image says it was made from, with `-dirty` if there were uncommitted changes."""
        return self.labels.get(REVISION)

    @property
    def contract(self) -> int:
        """The contract that the image's app follows; the old one if the image does not say."""
        told = self.labels.get(CONTRACT_LABEL, "")
        return int(told) if re.fullmatch(r"[1-9]\d{0,5}", told, re.ASCII) else OLD_CONTRACT

    def environment(self, stack: Stack) -> Environment:
        """Return the environment in it, of a cell of this stack."""
        return image_environment(self.id, self.identity, self.contract, stack, self.revision)


@dataclass(frozen=True)
class Epochs:
    """The times of files in an image, in seconds since 1970: of the files below the app, and of the app."""

    runtime: int
    app: int

    @property
    def labels(self) -> dict[str, str]:
        """The times as labels, with the creation time that the OCI defines."""
        return {EPOCHS: f"{self.runtime},{self.app}", CREATED: oci_time(self.app)}


@dataclass(frozen=True)
class Inputs:
    """The inputs of the image of a stack, each as a hash; None if this host does not know it (yet)."""

    stack: Stack
    base: str | None
    pins: str
    lock: str | None
    app: str
    recipe: str

    @property
    def labels(self) -> dict[str, str]:
        """The known inputs, as labels."""
        parts = {"stack": self.stack.name, "pins": self.pins, **self.identity}
        return {f"{PREFIX}.{part}": value for part, value in parts.items() if value is not None}

    @property
    def runtime_labels(self) -> dict[str, str]:
        """The labels of the runtime image, which holds everything below the app."""
        return {name: value for name, value in self.labels.items() if name != f"{PREFIX}.app"}

    @property
    def wanted(self) -> dict[str, str]:
        """The labels of an image made from these inputs, even if some inputs are unknown."""
        return {**self.labels, **self._instead}

    @property
    def _instead(self) -> dict[str, str]:
        """Labels that stand for unknown inputs: the name of a base that is not here, and GPU targets without a lock."""
        base = {} if self.base else {BASE_NAME: self.stack.base}
        return base | ({f"{PREFIX}.targets": "-".join(self.stack.targets)} if self.stack.targets else {})

    def wanted_of(self, kind: str) -> dict[str, str]:
        """Return the labels of an image made from these inputs: of a `stack`, or of the `runtime` below it."""
        labels = self.runtime_labels if kind == "runtime" else self.labels
        return {**labels, **self._instead, f"{PREFIX}.kind": kind}

    @property
    def identity(self) -> dict[str, Any]:
        """The inputs that decide the behaviour of the stack, for the environment hash."""
        return {part: getattr(self, part) for part in IDENTITY}


def stack_tag(labels: Mapping[str, str]) -> str:
    """Return the tag of a stack's or runtime's image from its labels. It names the inputs, so it never has to move."""
    repository = RUNTIMES if labels.get(f"{PREFIX}.kind") == "runtime" else STACKS
    return f"{repository}:{labels[f'{PREFIX}.stack']}-{labels[INPUTS][:SHORT]}"


def tag_name(cell: Cell) -> str:
    """Return the cell's id, with the GPU targets if its image has device code for those only."""
    return "-".join((cell.id, *cell.stack.targets))


def name_by_labels(labels: Mapping[str, str]) -> str:
    """The same of an image, by its labels; empty where it is of no cell."""
    cell, targets = (labels.get(f"{PREFIX}.{part}", "") for part in ("cell", "targets"))
    return "-".join(filter(None, (cell, targets))) if cell else ""


def repository_in(registry: str) -> str:
    """The repository with the images of cells in a registry such as `ghcr.io/me`, as engines name it.

    They leave out the host of Docker Hub, and what is pulled is found, and its signatures, by the engine's name.
    """
    return f"{registry.rstrip('/').removeprefix(DOCKER_HUB)}/{CELLS}"


def cell_tag(cell: Cell) -> str:
    """Return the tag of a cell's image. The name of a cell made for a comparison may not be valid in a tag."""
    return tag_of_cell(tag_name(cell))


def tag_of_cell(name: str) -> str:
    """Return the tag of a cell's image from the name that `tag_name` returns."""
    if re.fullmatch(TAG, name):
        return f"{CELLS}:{name}"
    return f"{CELLS}:{re.sub('[^A-Za-z0-9_.-]', '_', name)[:100]}-{json_hash(name)[:SHORT]}"


def cell_labels(cell: Cell, stack_labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that distinguish a cell's image from every other: its stack's, and its own."""
    mine = {"cell": cell.id, "preset": cell.preset.name, "cell-recipe": json_hash(cell_part(cell))}
    stack = {name: value for name, value in stack_labels.items() if name.startswith(PREFIX) and name != INPUTS}
    return {**stack, **{f"{PREFIX}.{part}": value for part, value in mine.items()}}


def informative_labels(stack: Stack) -> dict[str, str]:
    """Return labels that only inform: those that the OCI defines, and what the stack declares."""
    declared = {"accelerator": stack.accelerator, "rocm": stack.rocm, "torch": stack.torch, "python": stack.python}
    declared |= {"targets": "-".join(stack.targets)}
    return {
        "org.opencontainers.image.title": stack.name,
        "org.opencontainers.image.description": "Volume-profile training app on one ROCm x PyTorch stack",
        "org.opencontainers.image.version": __version__,
        "org.opencontainers.image.licenses": "Apache-2.0",
        **({REVISION: revision} if (revision := source_revision()) else {}),
        **epochs_of(stack).labels,
        BASE_NAME: stack.base,
        **({BASE_DIGEST: digest} if (digest := base_digest(stack)) else {}),
        CONTRACT_LABEL: str(CONTRACT),
        **{f"{PREFIX}.{part}": value for part, value in declared.items() if value},
    }


def epochs_of(stack: Stack) -> Epochs:
    """Return the times of a stack's newest inputs; an edit of the app does not change the time of what is below it."""
    recipe = [*(IMAGES / name for name in (TEMPLATE, *TOOLS)), LAYERS]
    runtime = newest_of(lock_file(stack), pins_file(stack), *recipe)
    return Epochs(runtime, max(runtime, newest_of(APP, COMPILER_LOCK)))


def labelled_epochs(labels: Mapping[str, str]) -> Epochs | None:
    """Return the times that an image says its files have; None if it says none."""
    found = re.fullmatch(r"(\d{1,10}),(\d{1,10})", labels.get(EPOCHS, ""), re.ASCII)
    return Epochs(int(found[1]), int(found[2])) if found else None


def inputs_of(engine: Engine | None, stack: Stack) -> Inputs:
    """Return the inputs that the image of a stack would be made from now. Nothing is fetched or resolved.

    Without an engine, a base whose digest was not resolved is unknown.
    """
    base = base_digest(stack)
    if base is None and engine and (image := find(engine, stack.base)):
        base = json_hash(image.layers)
    lock = lock_file(stack)
    return Inputs(
        stack=stack,
        base=base,
        pins=pins_hash(stack),
        lock=file_hash(lock) if lock.is_file() else None,
        app=app_hash(),
        recipe=recipe(stack),
    )


def recipe(stack: Stack) -> str:
    """Return the identity of the recipe of a stack's image; the name of the base does not matter."""
    files = [*(IMAGES / name for name in TOOLS), LAYERS]
    return json_hash([stack_part(stack, base="base"), layers.LAYER_BYTES, *map(file_hash, files)])


def base_reference(stack: Stack) -> str:
    """Return the base image of a stack, by digest if one was resolved."""
    digest = base_digest(stack)
    return f"{parse_repository_tag(stack.base)[0]}@{digest}" if digest else stack.base


def find(engine: Engine, reference: str) -> Image | None:
    """Return the image with a name or id; None if the engine does not have it."""
    with engine_errors(f"looking for image {reference}"):
        try:
            return _image(engine.client.api.inspect_image(reference))
        except ImageNotFound:
            return None


def is_name_free(engine: Engine, name: str) -> bool:
    """Return whether no image has this name; one that says too much of itself to be read has it, too."""
    with engine_errors(f"looking for image {name}"), suppress(TooLargeAnswerError):
        try:
            engine.client.api.inspect_image(name)
        except ImageNotFound:
            return True
    return False


def all_by_labels(engine: Engine, labels: Mapping[str, str]) -> Iterator[Image]:
    """Yield the images that have all these labels, newest first. Anybody can write labels, so they prove nothing.

    Images with triggers (ONBUILD) are skipped: none of ours has any, and a build FROM such an image would run them as
    root. So are those with labels that no build could take, or without the hash that names a stack's image.
    """
    wanted = [f"{name}={value}" for name, value in labels.items()]
    with engine_errors("looking for images"):
        found = engine.client.api.images(filters={"label": wanted})
        for newest in sorted(found, key=lambda image: int(image["Created"]), reverse=True):
            # Skip an image whose answer is too large; that of our images never is.
            with suppress(TooLargeAnswerError):
                told = engine.client.api.inspect_image(newest["Id"])
                image = _image(told)
                hashed = re.fullmatch("[0-9a-f]{64}", image.labels.get(INPUTS, ""))
                size = sum(len(name) + len(value) for name, value in image.labels.items())
                if hashed and size <= MOST_LABEL_BYTES and not told["Config"].get("OnBuild"):
                    yield image


def check_is_of(image: Image, cell: Cell, reference: str) -> None:
    """Refuse an image that is not the cell's.

    Raises:
        UserError: when it is not, saying what it is.
    """
    found = image.labels.get(f"{PREFIX}.cell", "no cell of this matrix")
    if found != cell.id:
        accelerator = image.labels.get(f"{PREFIX}.accelerator", "unknown")
        raise UserError(
            f"{reference}: is an image of {found} (accelerator {accelerator}), not of {cell.id}; "
            "somebody moved the tag, or it was pushed under another name"
        )


def _image(told: Mapping[str, Any]) -> Image:
    return Image(
        id=told["Id"],
        labels=(told.get("Config") or {}).get("Labels") or {},
        layers=tuple(told["RootFS"].get("Layers") or ()),
        size=int(told["Size"]),
        tags=tuple(told.get("RepoTags") or ()),
        digests=tuple(told.get("RepoDigests") or ()),
    )
