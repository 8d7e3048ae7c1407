"""Builds the images of stacks and cells from Dockerfiles, without a network."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files.hashes import json_hash
from harness.base.files.locks import held_locks, locked
from harness.base.files.storage import write_json
from harness.base.interrupts import GRACE_SECONDS
from harness.base.paths import BUILDS
from harness.environments.compiled_kernel import ensure_kernel
from harness.environments.docker.base_image import digest_of_base, ensure_base
from harness.environments.docker.build_context import fill_app, fill_runtime, listed_layers
from harness.environments.docker.builder_copies import copies_in_builder, drop_copies
from harness.environments.docker.dockerfile import render, stack_part
from harness.environments.docker.images import (
    INPUTS,
    PREFIX,
    REVISION,
    Epochs,
    Image,
    base_reference,
    cell_labels,
    cell_tag,
    epochs_of,
    find,
    informative_labels,
    inputs_of,
    is_name_free,
    labelled_epochs,
    stack_tag,
)
from harness.environments.docker.own_images import (
    current_image,
    find_by_labels,
    find_own_stack_image,
    find_runtime_image,
    find_stack_image,
    is_own,
    own_ids,
    remember,
)
from harness.environments.docker.source_state import NO_TIME, forget_source, source_revision
from harness.environments.in_use import keep_in_place
from harness.environments.python.pins import ensure_lock
from harness.host.engine import Engine
from harness.host.engine_errors import Notify, engine_errors
from harness.matrix.cells import Cell
from harness.matrix.stacks import Stack

FULL_DISK = "no space left on device"
FAILED = re.compile("executor failed running|did not complete successfully")
WORDS = 400


class InputsChangedError(UserError):
    """The inputs of an image were changed while its files were collected."""


def ensure_cell_image(engine: Engine, cell: Cell, notify: Notify = lambda _: None) -> Image:
    """Return the image of a cell: the one that this engine has, or a new one.

    Raises:
        UserError: when the image cannot be built; no half-built image is left.
    """
    keep_in_place()
    with locked(lock_of_builds(cell.id), notify):
        image = current_image(engine, cell)
        if image is None:
            stack_image = ensure_stack_image(engine, cell.stack, notify)
            labels = cell_labels(cell, stack_image.labels)
            image = find_by_labels(engine, labels)
            if image is None:
                below, tag = stack_tag(stack_image.labels), cell_tag(cell)
                image = build_cell(engine, cell, stack_image, labels, notify, below=below, tag=tag)
                remember(image, on_others=not is_own(stack_image.id))
        # People take the tag for what this checkout built, or for what they pulled or loaded under it.
        if image.id in own_ids() or is_name_free(engine, cell_tag(cell)):
            _tag(engine, image, cell_tag(cell))
        return image


def ensure_stack_image(engine: Engine, stack: Stack, notify: Notify = lambda _: None, *, own: bool = False) -> Image:
    """Return the image of a stack: the one that this engine has, or a new one.

    `own`: use an existing image only if this checkout has built it, because anybody can write the labels of an image.

    Raises:
        UserError: when the image cannot be built; no half-built image is left.
    """
    keep_in_place()
    with locked(lock_of_builds(stack.name), notify):
        image = _find_stack(engine, stack, own=own)
        if image is None:
            try:
                image = _build_stack(engine, stack, notify, own=own)
            except InputsChangedError as error:
                # What was fetched is kept.
                notify(f"{error}; building it again")
                image = _build_stack(engine, stack, notify, own=own)
        elif _context(stack).exists():
            # A harness was killed, and its builder went on to the end.
            _clear(engine, stack)
        # Tag again: another image may have taken the tag, and an engine deletes an image that loses its last tag.
        _tag(engine, image, stack_tag(image.labels))
        return image


def _find_stack(engine: Engine, stack: Stack, *, own: bool) -> Image | None:
    return (find_own_stack_image if own else find_stack_image)(engine, inputs_of(engine, stack))


def _build_stack(engine: Engine, stack: Stack, notify: Notify, *, own: bool) -> Image:
    # Check for a builder before anything is fetched.
    _ = engine.builder
    # The command may have begun hours ago.
    forget_source()
    base = ensure_base(engine, stack, notify)
    lock = ensure_lock(stack, digest_of_base(base, stack))
    # Do this first, because the hash of the app depends on whether there is a compiled part.
    ensure_kernel(notify)
    if image := _find_stack(engine, stack, own=own):
        return image
    inputs = inputs_of(engine, stack)
    runtime = find_runtime_image(engine, inputs)
    if runtime is None:
        runtime = build_part(
            engine, stack, "runtime", inputs.runtime_labels, partial(fill_runtime, stack, lock, notify), notify
        )
        remember(runtime)
    below = stack_tag(runtime.labels)
    _tag(engine, runtime, below)
    words = ("--build-arg", f"RUNTIME={below}")
    image = build_part(engine, stack, "stack", inputs.labels, fill_app, notify, words)
    remember(image)
    return image


def build_part(
    engine: Engine,
    stack: Stack,
    kind: str,
    inputs: Mapping[str, str],
    fill: Callable[[Path], None],
    notify: Notify,
    words: tuple[str, ...] = (),
    epochs: Epochs | None = None,
    tag: str | None = None,
) -> Image:
    """Build the `stack` part of the Dockerfile, or the `runtime` part below it, which holds everything but the app.

    These are two images, not layers in the builder's cache, because some builders drop cached layers together with the
    files given to the build. Gigabytes of wheels would then be given again for each edit of the app.

    - `fill`: puts the files for the build into a folder.
    - `words`: further options of the builder.
    - `epochs`: the times that files get.
    - `tag`: the name of the image; None for one that names its inputs.
    """
    epochs = epochs or epochs_of(stack)
    labels = {**informative_labels(stack), **inputs, **epochs.labels, f"{PREFIX}.kind": kind, INPUTS: json_hash(inputs)}
    tag = tag or stack_tag(labels)
    context = _context(stack)
    try:
        shutil.rmtree(context, ignore_errors=True)
        _note_copies(engine, stack)
        fill(context)
        _require_unchanged(engine, stack, kind, inputs)
        notify(f"building {stack.name}" if kind == "runtime" else f"building {stack.name}: the app")
        text = stack_part(stack, base_reference(stack), len(listed_layers(context)) + 1)
        target = ("--target", kind, *words, "--tag", tag, "--file", "-", str(context))
        name = stack.name if kind == "stack" else f"{stack.name}-{kind}"
        _build(engine, name, text, labels, target, epochs.runtime if kind == "runtime" else epochs.app)
    finally:
        _clear(engine, stack)
    return _built(engine, tag)


def _require_unchanged(engine: Engine, stack: Stack, kind: str, inputs: Mapping[str, str]) -> None:
    """Refuse files that are not those that the labels name: a `git pull` may come while gigabytes are fetched.

    Raises:
        InputsChangedError: when an input was changed since the labels were made.
    """
    now = inputs_of(engine, stack)
    if (now.runtime_labels if kind == "runtime" else now.labels) != inputs:
        raise InputsChangedError(f"stack {stack.name}: what its image is made from was changed meanwhile")


def _context(stack: Stack) -> Path:
    """Return the folder with everything that an image is made from, while it is made."""
    return BUILDS / stack.name


def _note_copies(engine: Engine, stack: Stack) -> None:
    """Note before a build which copies the builder has, so that those of the build can be dropped when it is over.

    A note left by a killed build is kept, because its copies have yet to be dropped.
    """
    # Ignore errors of the engine, here and below: they are no reason to fail a build.
    with suppress(UserError):
        if not _noted_copies(stack).is_file():
            write_json(_noted_copies(stack), {name: copy.uses for name, copy in copies_in_builder(engine).items()})


def _noted_copies(stack: Stack) -> Path:
    return BUILDS / f"{stack.name}-copies.json"


def _clear(engine: Engine, stack: Stack) -> None:
    """Remove the folder given to a build, and the copies that the builder made of it since they were noted."""
    shutil.rmtree(_context(stack), ignore_errors=True)
    noted = _noted_copies(stack)
    with suppress(UserError, FileNotFoundError):
        drop_copies(engine, json.loads(noted.read_text(encoding="utf-8")))
        noted.unlink()


def build_cell(
    engine: Engine, cell: Cell, stack: Image, labels: Mapping[str, str], notify: Notify, *, below: str, tag: str
) -> Image:
    """Build the image of a cell, named `tag`, from that of its stack, which has the tag `below`."""
    notify(f"building {cell.id}")
    told = {
        **labels,
        f"{PREFIX}.kind": "cell",
        INPUTS: json_hash(labels),
        # The commit of its preset may be newer than that of its stack.
        **({REVISION: revision} if (revision := source_revision() or stack.labels.get(REVISION)) else {}),
        "org.opencontainers.image.title": cell.id,
        "org.opencontainers.image.description": cell.preset.description,
    }
    words = ("--target", "cell", "--build-arg", f"STACK={below}", "--tag", tag, "-")
    epochs = labelled_epochs(stack.labels)
    _build(engine, cell.id, render(cell), told, words, epochs.app if epochs else NO_TIME)
    return _built(engine, tag)


def _build(
    engine: Engine, name: str, dockerfile: str, labels: Mapping[str, str], words: tuple[str, ...], epoch: int = NO_TIME
) -> None:
    """Run one build; `epoch` is the time that its files get and, with newer builders, the image itself.

    An image gets its name when it is complete, so an interrupted build leaves no named image.

    Raises:
        UserError: when the build fails, with the builder's own reason.
    """
    builder = engine.builder
    command = [builder.program, *builder.build, "--network", "none", "--progress", "plain"]
    command += ["--build-arg", f"SOURCE_DATE_EPOCH={epoch}"]
    command += [word for label, value in sorted(labels.items()) for word in ("--label", f"{label}={value}")]
    BUILDS.mkdir(parents=True, exist_ok=True)
    log = BUILDS / f"{name}.log"
    with (
        log.open("w+", encoding="utf-8", errors="replace") as stream,
        tempfile.TemporaryFile("w+", encoding="utf-8") as given,
    ):
        # Do not use a pipe: if the harness is killed, the builder would get a part of the text and build a valid image
        # of it.
        given.write(dockerfile)
        given.seek(0)
        process = subprocess.Popen(
            [*command, *words],
            stdin=given,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=builder.variables,
            start_new_session=True,
            pass_fds=held_locks(),
        )
        try:
            process.wait()
        except BaseException:
            # The builder stops when its client ends.
            process.terminate()
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise
        stream.seek(0)
        text = stream.read()
    if process.returncode:
        raise UserError(f"image {name} could not be built: {_reason(text, engine)}; the builder's whole log is {log}")
    engine.sync_images()


def _reason(text: str, engine: Engine) -> str:
    """Return why a build failed, in one line."""
    if FULL_DISK in text.lower():
        return f"no space left where the engine keeps images, {engine.folder or ''}; free some (docker system df)"
    said = [re.sub(r"^#\d+ ([\d.]+ )?", "", line).strip() for line in text.splitlines()]
    # Skip the line that a step failed; what the step said before tells why.
    telling = [line for line in said if re.search(r"error|image: ", line, re.IGNORECASE) and not FAILED.search(line)]
    return ([*telling, *reversed(list(filter(None, said))), "it said nothing"])[0][:WORDS]


def _built(engine: Engine, reference: str) -> Image:
    image = find(engine, reference)
    if image is None:
        raise UserError(f"image {reference} was built and is gone; somebody removed it")
    return image


def _tag(engine: Engine, image: Image, tag: str) -> None:
    if tag not in image.tags:
        with engine_errors(f"tagging {tag}"):
            engine.client.api.tag(image.id, *tag.rsplit(":", 1))


def lock_of_builds(name: str) -> Path:
    """Return the lock file that allows this checkout one build of an image at a time."""
    return BUILDS / f"{name}.lock"
