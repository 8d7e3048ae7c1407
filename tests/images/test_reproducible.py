"""Tests that the same inputs give the same image in another folder, and with another user, umask, locale, time zone."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from harness.environments.docker.build import ensure_cell_image
from harness.environments.docker.image_tree import differences_from, tree_of
from harness.environments.docker.images import Image, find
from harness.environments.docker.source_state import source_revision
from harness.environments.docker.verify_image import EQUAL
from harness.host.engine import Engine
from harness.matrix.load import Given, load_matrix
from tests.images.conftest import BASE, MAIN

PYTHON = str(CHECKOUT / ".venv/bin/python")
# The base of this cell has torch, so a rebuild is quick.
SMALLER = "cpu-debian13-torch2.6.0-no-sdma"


def elsewhere(folder: Path) -> Path:
    """Return a copy of the checkout that belongs to another user, without git, with shared wheels and kernels."""
    copy = folder / "a much longer path than that of the checkout" / "ünïcode"
    for part in ("app", "harness", "images"):
        shutil.copytree(CHECKOUT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "*_cache", "*.so"))
    for file in ("matrix.yaml", "requirements-compiler.txt"):
        shutil.copy(CHECKOUT / file, copy)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o700 if path.is_dir() or os.access(path, os.X_OK) else 0o600)
        if os.geteuid() == 0:
            os.chown(path, 54321, 54321)
    (copy / ".cache").mkdir()
    for kept in ("wheels", "kernels"):
        # The folder may be missing, because nothing is fetched when the engine already has the images.
        (CHECKOUT / ".cache" / kept).mkdir(parents=True, exist_ok=True)
        (copy / ".cache" / kept).symlink_to(CHECKOUT / ".cache" / kept)
    return copy


def test_matrix_verify_makes_the_same_layers_in_another_folder_with_another_user_umask_locale_and_time_zone(
    images: dict[str, Image], tmp_path: Path
) -> None:
    copy = elsewhere(tmp_path)
    if source_revision():
        # An image of another revision would be compared in a checkout of that revision.
        clone = ["git", "clone", "--quiet", "--shared", "--no-checkout", str(CHECKOUT), str(tmp_path / "clone")]
        subprocess.run(clone, check=True)
        (tmp_path / "clone/.git").rename(copy / ".git")
        subprocess.run(["git", "-c", "safe.directory=*", "-C", str(copy), "reset", "--quiet"], check=True)
    other = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "LANG": "tr_TR.UTF-8", "HOME": str(tmp_path), "PYTHONHASHSEED": "7"}
    script = 'umask 077 && cd "$1" && shift && exec "$@"'
    verify = [PYTHON, "-c", MAIN, "verify", images["cpu-plain"].id, "--json"]
    command = ["sh", "-c", script, "sh", str(copy), *verify]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **other}, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checking out" not in done.stderr
    told = json.loads(done.stdout)
    assert (told["result"], told["differences"]) == (EQUAL, [])
    # The base already has the mount points; otherwise an engine would store their creation time in each layer.
    assert (told["same_layers"], told["layers"]) == (4, 4)


@pytest.fixture
def commits(tmp_path: Path) -> tuple[Path, Callable[[str], str]]:
    """Return a checkout with git, and a function that commits all changes in it and returns the revision."""
    copy = elsewhere(tmp_path)
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-c", "safe.directory=*", "-C", str(copy)]

    def commit(message: str) -> str:
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "--message", message], check=True)
        return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()

    subprocess.run([*git, "init", "--quiet"], check=True)
    (copy / ".gitignore").write_text(".cache\n__pycache__\n")
    return copy, commit


def test_matrix_verify_builds_an_image_of_another_revision_again_and_says_where_it_cannot(
    engine: Engine, bases: tuple[str, str], commits: tuple[Path, Callable[[str], str]]
) -> None:
    copy, commit = commits
    environment = {**os.environ, "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory"}
    environment |= {"GIT_CONFIG_VALUE_0": "*", "PYTHONPATH": ""}

    def matrix_there(*words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `matrix` in that checkout."""
        command = [PYTHON, "-c", MAIN, *words]
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)

    with (copy / "app/vpoc/cli.py").open("a") as stream:
        stream.write(f"# {copy}\n")
    revision = commit("of the image")
    told = matrix_there("build", SMALLER, "--json")
    assert told.returncode == 0, told.stderr
    (made,) = json.loads(told.stdout)["images"]
    try:
        with (copy / "app/vpoc/cli.py").open("a") as stream:
            stream.write("# and on\n")
        commit("later")
        image = find(engine, made["image"])
        assert image is not None
        assert image.revision == revision
        done = matrix_there("verify", image.id, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        compared = json.loads(done.stdout)
        assert (compared["result"], compared["revision"], compared["image"]) == (EQUAL, revision, image.id), compared
        # Engines that keep manifests name an image by the manifest's digest.
        assert compared["same_manifest"] == (True if engine.keeps_compressed else None)
        # The revision exists, but the image's inputs are gone: the command checks the revision out once, and says so.
        # The image gets its own name, because other checkouts move the cell's tag.
        mine = f"vpoc-test:{revision}"
        engine.client.api.tag(image.id, *mine.split(":"))
        labels = f"vpoc.matrix.lock={'0' * 64}"
        other = derived(engine, mine, f"{mine}-other", f"LABEL {labels}", "USER 65534")
        refused = matrix_there("verify", other.id)
        engine.client.images.remove(other.id, force=True)
        assert refused.returncode == 2
        last = refused.stderr.splitlines()[-1]
        assert last.startswith(f"matrix: revision {revision}: cannot build it again: ")
        assert "it was made from something else: lock is " in last
        assert refused.stderr.count("checking out") <= 1
    finally:
        engine.client.images.remove(made["image"], force=True)
        stacks = {"label": [f"org.opencontainers.image.revision={revision}"]}
        for left in engine.client.images.list(filters=stacks):
            engine.client.images.remove(left.id, force=True)
        # Those images took the tags of the cells, so build the cells again.
        matrix = load_matrix(CHECKOUT / "matrix.yaml", Given(BASE))
        ensure_cell_image(engine, matrix.cells[SMALLER])


def derived(engine: Engine, base: str, name: str, *lines: str) -> Image:
    builder = engine.builder
    text = "\n".join([f"FROM {base}", "USER 0", *lines, ""])
    command = [builder.program, *builder.build, "--network", "none", "--tag", name, "-"]
    subprocess.run(command, input=text, text=True, check=True, capture_output=True, env=builder.variables)
    made = find(engine, name)
    assert made is not None
    return made


def test_what_differs_is_named_by_its_file(engine: Engine, bases: tuple[str, str]) -> None:
    one = derived(engine, bases[0], "vpoc-test:one", "RUN echo a > /opt/same && echo b > /opt/file && touch /opt/gone")
    two = derived(
        engine, bases[0], "vpoc-test:two", "RUN echo a > /opt/same && echo c > /opt/file && chmod 600 /opt/same"
    )
    try:
        found = differences_from(engine, one, tree_of(engine, two))
    finally:
        for name in ("vpoc-test:one", "vpoc-test:two"):
            engine.client.images.remove(name, force=True)
    assert [line.partition(":")[0] for line in found] == ["/opt/file", "/opt/gone", "/opt/same"]
    assert "mode 0644 and 0600" in found[2]
    assert found[1] == "/opt/gone: only in the first"


@pytest.mark.long
def test_an_image_that_somebody_changed_is_different(engine: Engine, images: dict[str, Image]) -> None:
    """Labels and tag are unchanged, so only the content shows the change."""
    changed = derived(engine, "vpoc:cpu-plain", "vpoc-test:changed", "RUN echo >> /opt/venv/bin/vpoc", "USER 65534")
    command = [str(CHECKOUT / ".venv/bin/matrix"), "verify", changed.id]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT, timeout=600)
    finally:
        engine.client.images.remove(changed.id, force=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "/opt/venv/bin/vpoc: content" in done.stdout
