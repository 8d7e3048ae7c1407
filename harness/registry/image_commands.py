"""The commands on images, without the parsing and printing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.base.errors import NoEngineError, NoSpaceError, UserError
from harness.base.paths import LOCKS
from harness.base.sysfs import REAL_ROOT
from harness.base.wording import size_in_words
from harness.environments.capabilities import GB, Skipped, capabilities_of, choose_engine, room_needed
from harness.environments.docker.build import ensure_cell_image
from harness.environments.docker.images import Image, cell_tag, find, repository_in
from harness.environments.docker.own_images import current_image
from harness.environments.python import pins
from harness.host.engine import Engine
from harness.host.engine_errors import Notify, transfer_errors
from harness.host.fingerprint import read_host
from harness.matrix.cells import Cell, Matrix
from harness.matrix.stacks import Stack
from harness.registry.attestations.attached import Signed, signed_beside
from harness.registry.attestations.attest import attest_image
from harness.registry.attestations.keys import known_keys
from harness.registry.oci import Repository
from harness.registry.push_plan import PushPlan, plan_push
from harness.registry.push_pull import built_image, pull, push_image, remote_name

# The name of the base images that `images/base.sh` builds.
OWN_BASES = "vpoc-base"


@dataclass(frozen=True)
class BuildPlan:
    """The images to build, those already built, cells left out with reasons, and the download and space needed."""

    build: tuple[Cell, ...]
    there: tuple[Cell, ...]
    skipped: tuple[Skipped, ...]
    download_gb: float
    disk_gb: float
    free_gb: float | None
    place: str

    @property
    def indexes(self) -> dict[str, str]:
        """Return the wheel index of each stack to build that shows one, by the name of the stack."""
        stacks = (cell.stack for cell in self.build)
        return {stack.name: stack.shown_index for stack in stacks if stack.shown_index}

    @property
    def unlocked(self) -> list[str]:
        """Return the stacks whose lock must be resolved first."""
        return list(dict.fromkeys(c.stack.name for c in self.build if not pins.lock_file(c.stack).is_file()))

    @property
    def plain(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return {
            "build": [cell.id for cell in self.build],
            "there": [cell.id for cell in self.there],
            "left_out": [{"cell": skipped.cell.id, "reason": skipped.reason} for skipped in self.skipped],
            "to_be_locked": self.unlocked,
            "indexes": self.indexes,
            "download_gb": round(self.download_gb, 1),
            "disk_gb": round(self.disk_gb, 1),
            "free_gb": self.free_gb,
            "place": self.place,
        }


def the_engine() -> Engine:
    """Return the Docker engine.

    Raises:
        UserError: when no engine answers.
    """
    engine = choose_engine((), "docker")
    if engine is None:
        raise NoEngineError("no Docker engine answers")
    return engine


def cells_of_rocm(matrix: Matrix, rocm: str, selection: str) -> list[Cell]:
    """Return the cells of every torch stack of one ROCm version (or `cpu`), with the presets of a selection.

    Raises:
        UserError: when there is no such version.
    """
    rocm = rocm.lower()
    known = matrix.rocm_versions
    if rocm not in known:
        raise UserError(f"ROCm {rocm}: no stack of it; there are {', '.join(known)}")
    stacks = [s for s in matrix.stacks.values() if (s.rocm or s.accelerator) == rocm and s.framework == "torch"]
    presets = list(dict.fromkeys(cell.preset.name for cell in matrix.select(selection)))
    return [matrix.cell(stack.name, preset) for stack in stacks for preset in presets]


def plan_build(engine: Engine | None, cells: Iterable[Cell], root: Path = REAL_ROOT) -> BuildPlan:
    """Return the plan to build these cells' images on the host at `root`; without an engine, none counts as built."""
    cells = list(cells)
    skipped = tuple(Skipped(cell, reason) for cell in cells if (reason := _why_not(engine, cell)))
    left_out = {s.cell.id for s in skipped}
    kept = [cell for cell in cells if cell.id not in left_out]
    there = tuple(c for c in kept if engine and current_image(engine, c))
    build = tuple(cell for cell in kept if cell not in there)
    host = capabilities_of(read_host(root), engine, build, None)
    if engine is None:
        host = replace(host, executor="docker", made=frozenset(), free_bytes=None, place="the engine's disk")
    download, disk = room_needed((cell.stack for cell in build), host)
    free = None if host.free_bytes is None else host.free_bytes / GB
    return BuildPlan(build, there, skipped, download, disk, free, host.place)


def build(engine: Engine, plan: BuildPlan, notify: Notify) -> tuple[dict[str, Image], list[str]]:
    """Build the images of a plan; return the built images by cell, and the errors of the others.

    Raises:
        UserError: when the disk has too little room.
    """
    if plan.free_gb is not None and plan.disk_gb > plan.free_gb:
        fewer = f", or build fewer: `matrix build {plan.build[0].id}`" if len(plan.build) > 1 else ""
        needed, free = size_in_words(plan.disk_gb * GB), size_in_words(plan.free_gb * GB)
        raise NoSpaceError(f"{plan.place}: {needed} are needed, {free} are free; free some{fewer}")
    images: dict[str, Image] = {}
    problems: dict[str, str] = {}
    for cell in (*plan.there, *plan.build):
        if cell.stack.name not in problems:
            try:
                images[cell.id] = ensure_cell_image(engine, cell, notify)
            except UserError as error:
                problems[cell.stack.name] = str(error)
    return images, list(problems.values())


def lock(
    engine: Engine | None, stack: Stack, notify: Notify, python: str | None = None, build: pins.Build = "own"
) -> dict[str, Any]:
    """Resolve a stack's wheels and its base image's digest into `images/locks`; return the lock's provenance.

    `python` is the version to resolve for; None for that of the image. `build` "pypi" resolves PyPI's build of torch.

    Raises:
        UserError: when the stack has no wheels, or they cannot be resolved.
    """
    if stack.excluded or stack.torch is None:
        raise UserError(f"stack {stack.name}: {stack.excluded or 'has no image, and no lock'}")
    if python not in (None, *stack.pythons):
        raise UserError(f"stack {stack.name}: no wheels for Python {python}; choose one of {', '.join(stack.pythons)}")
    if build == "pypi" and stack.accelerator != "cpu":
        raise UserError(f"stack {stack.name}: PyPI has no build of torch for ROCm; leave --pypi out")
    name = pins.lock_name(stack, python, build)
    of_image = name == pins.lock_name(stack) and "docker" in stack.executors
    digest = _resolve_base(engine, stack, notify) if of_image else None
    notify(f"resolving the wheels of {name}")
    file = pins.make_lock(stack, LOCKS / f"{name}.txt", digest, python, build)
    return {**pins.provenance(file), "file": str(file)}


def push_cell(engine: Engine, cell: Cell, registry: str, notify: Notify) -> str:
    """Push the image of a cell, with signed statements beside it; return its reference by digest.

    Raises:
        UserError: when the image is not built or differs from its lock, or the registry refuses it.
    """
    image, repository = built_image(engine, cell), repository_in(registry)
    digest = push_image(engine, image.id, remote_name(registry, cell), notify)
    attest_image(engine, cell, image, repository, digest, notify)
    return f"{repository}@{digest}"


def plan_push_of_cell(engine: Engine, cell: Cell, registry: str) -> PushPlan:
    """Return what a push of a cell's image would send.

    Raises:
        UserError: when the image is not built, or the registry does not answer.
    """
    return plan_push(engine, built_image(engine, cell), repository_in(registry))


def pull_cell(
    engine: Engine, cell: Cell, registry: str, digest: str | None, listed: Mapping[str, str], notify: Notify
) -> dict[str, Any]:
    """Pull a cell's image; return its names and digests, its signers, and whether this checkout would run it.

    `listed` are the keys of others that matrix.yaml names.
    """
    image = pull(engine, cell, registry, digest, notify)
    current = current_image(engine, cell)
    signers = sorted({one.signer for one in _signed(image, registry, listed)})
    return {
        "cell": cell.id,
        "image": image.id,
        "tag": cell_tag(cell),
        "digests": list(image.digests),
        "signed_by": signers,
        "current": current is not None and current.id == image.id,
    }


def _signed(image: Image, registry: str, listed: Mapping[str, str]) -> list[Signed]:
    """Return the signed statements about a pulled image, and keep copies of them."""
    repository = Repository(repository_in(registry))
    digests = [digest for name, _, digest in (d.partition("@") for d in image.digests) if name == repository.name]
    known = known_keys(listed)
    return [one for digest in digests for one in signed_beside(repository, digest, known)]


def _why_not(engine: Engine | None, cell: Cell) -> str | None:
    if cell.excluded:
        return cell.excluded
    if "docker" not in cell.stack.executors:
        return "this stack has no image"
    if engine and cell.stack.torch_from_base and find(engine, cell.stack.base) is None:
        return f"its base image {cell.stack.base} is not here; {_how_made(cell.stack.base)}"
    return None


def _how_made(base: str) -> str:
    """Return how to get a base image, given its name."""
    suite, _, packages = base.removeprefix(f"{OWN_BASES}:").partition("-")
    known = base.startswith(f"{OWN_BASES}:")
    return f"`make base SUITE={suite} PACKAGES={packages}` builds it" if known else "pull or load it first"


def _resolve_base(engine: Engine | None, stack: Stack, notify: Notify) -> str | None:
    if engine is None:
        notify("no Docker engine answers: the digest of the base image is not recorded")
        return None
    try:
        with transfer_errors(f"asking for the digest of {stack.base}"):
            return str(engine.client.images.get_registry_data(stack.base).id)
    except UserError as error:
        notify(f"{error}; the digest of the base image is not recorded")
        return None
