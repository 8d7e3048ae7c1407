"""Tests of known-good tags through a real registry, with real runs in containers."""

import json
import os
import re
import shutil
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from benchmarks.kill_tester import STAND_IN_BARS
from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.base.sysfs import REAL_ROOT
from harness.environments.docker.images import Image, find
from harness.environments.executors.docker import LABEL
from harness.evidence.records import Results
from harness.host.engine import Engine
from harness.host.engine_errors import engine_errors, follow_transfer
from harness.host.fingerprint import read_host
from harness.matrix.load import Given, load_matrix
from harness.registry.oci import Repository
from harness.registry.tags.known_good import NothingPromotedError, resolve_tag
from harness.registry.tags.local_tags import LocalTags
from harness.registry.tags.promotions import PROMOTIONS, read_moves
from harness.registry.tags.registry_tags import HISTORY_TAG, RegistryTags
from harness.registry.tags.tag_commands import promote
from tests.harness.run_matrix import CompletedCommand, run_matrix
from tests.images.conftest import BASE, serve_registry, wait_until

# Two passes reach these thresholds, so that the test takes seconds.
MATRIX = """\
schema: 2
stacks:
  cpu: {accelerator: cpu, torch: "2.13.0"}
presets:
  plain: {description: nothing set; the control every other preset is compared with}
workloads:
  tiny:
    description: seconds, and yet a plain loop after a VPOC phase on the device
    synthetic: {sessions: 26}
    lookback: 20
    epochs: 1
    loader_workers: 1
    vpoc_path: chunked
    time_limit: 120
  endless:
    description: the same, and it does not end by itself
    synthetic: {sessions: 26}
    lookback: 20
    epochs: 5000
    loader_workers: 1
    vpoc_path: chunked
    time_limit: 120
selections:
  default: {description: one, stacks: [cpu], presets: [plain], workload: tiny}
verdicts:
  {candidate: 0.1, good: 0.2, known_good: 0.4, confidence: 0.6, known_good_boots: 1,
   mtbf_hours: {candidate: 0, good: 0, known_good: 0}}
"""
TAG = "known-good-cpu"
# The entry of the password `secret`, as `htpasswd -B` makes it.
HTPASSWD = "somebody:$2b$04$fy/7Dkmi.PZS9jKMIVV3leewmod5PEl5lDq2yMrRFyZ0msovBKN4C\n"
RIGHT, WRONG = (b64encode(f"somebody:{word}".encode()).decode() for word in ("secret", "wrong"))
Command = Callable[..., CompletedCommand]


@pytest.fixture(scope="module")
def matrix_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("promote") / "matrix.yaml"
    file.write_text(MATRIX, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def two_runs(matrix_file: Path, small_images: dict[str, Image], on_small_base: None) -> Path:
    """Return results with two runs that completed."""
    results = matrix_file.with_name("results")
    for _ in range(2):
        done = matrix_command(matrix_file, results, *run_cell(matrix_file), "--json")
        assert json.loads(done.stdout)["outcome"] == "completed", done.stdout
    return results


def run_cell(file: Path) -> tuple[str, ...]:
    """Return the words that run the cell once; they name data, because the stand-in cannot generate it."""
    bars = file.with_name("bars.csv")
    bars.write_text(STAND_IN_BARS)
    return "run-cell", "cpu-plain", "--data", str(bars)


@pytest.fixture
def results(two_runs: Path, tmp_path: Path) -> Results:
    """Return a copy of these results that only this test uses."""
    return Results(Path(shutil.copytree(two_runs, tmp_path / "results")))


@pytest.fixture
def command(matrix_file: Path, results: Results, engine: Engine) -> Iterator[Command]:
    """Yield a function that runs `matrix` on these results.

    Known-good tags that the engine has already, of its user or of tests that were killed, are put back afterwards.
    """
    with without_known_good_tags(engine):
        yield lambda *words, **options: matrix_command(matrix_file, results.folder, *words, **options)


@contextmanager
def without_known_good_tags(engine: Engine) -> Iterator[None]:
    names = [f"vpoc:{tag}" for tag in ("known-good", TAG)]
    before = [(name, image.id) for name in names if (image := find(engine, name))]
    # An engine deletes an image with its last tag.
    kept = {f"vpoc-test:kept-{image.partition(':')[2]}": image for _, image in before}
    _tag(engine, kept.items())
    _untag(engine, names)
    yield
    _untag(engine, names)
    _tag(engine, before)
    _untag(engine, kept)


def _tag(engine: Engine, images: Iterable[tuple[str, str]]) -> None:
    for name, image in images:
        engine.client.api.tag(image, *name.split(":"))


def _untag(engine: Engine, names: Iterable[str]) -> None:
    for name in names:
        if find(engine, name):
            engine.client.api.remove_image(name, noprune=True)


@pytest.fixture
def place(registry: str, engine: Engine) -> Iterator[str]:
    """Yield a part of the registry that no other test uses."""
    own = f"{registry}/{token_hex(4)}"
    yield own
    if find(engine, f"{own}/vpoc:cpu-plain"):
        engine.client.images.remove(f"{own}/vpoc:cpu-plain")


@pytest.fixture
def pushed(place: str, command: Command, engine: Engine) -> Iterator[str]:
    """Push the image into a part of the registry in advance, because pushing takes a minute; yield the part's path."""
    command("push", "cpu-plain", "--registry", place)
    path = place.partition("/")[2]
    yield path
    for image in engine.client.images.list():
        for tag in image.tags:
            if f"/{path}/" in tag:
                engine.client.images.remove(tag)


def matrix_command(file: Path, results: Path, *words: str, expected: int = 0, **variables: str) -> CompletedCommand:
    """Run a command with some variables of the environment; only one that starts runs is a process of its own."""
    line = ["--matrix", str(file), "--results", str(results), *words]
    if words[0] in ("run-cell", "train"):
        matrix, environment = str(CHECKOUT / ".venv/bin/matrix"), {**os.environ, **variables}
        ended = subprocess.run(
            [matrix, *line], capture_output=True, text=True, check=False, cwd=CHECKOUT, env=environment, timeout=280
        )
        done = CompletedCommand(ended.returncode, ended.stdout, ended.stderr)
    else:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            done = run_matrix(*line)
    assert done.returncode == expected, done.stdout + done.stderr
    return done


def told(done: CompletedCommand) -> str:
    """Return the last line of stderr, which says what is wrong; there must be no traceback."""
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def promoted_at(place: str | None, results: Results, file: Path, now: float) -> None:
    promote(results, load_matrix(file, Given(os.environ["MATRIX_BASE"])), "cpu-plain", place, now, print)


def in_registry(results: Results, place: str) -> Any:
    return resolve_tag(place, read_host(REAL_ROOT), results, time.time())


def test_what_was_promoted_is_found_by_the_name_of_the_registry_alone(
    command: Command, place: str, results: Results, small_images: dict[str, Image], tmp_path: Path
) -> None:
    (evidence,) = json.loads(command("promote", "cpu-plain", "--registry", place, "--json").stdout)["promoted"]
    assert evidence["run_ids"] == results.finished()
    assert (evidence["passes"], evidence["runs"], evidence["image"]) == (2, 2, small_images["cpu-plain"].id)
    assert evidence["repository"] == f"{place}/vpoc"
    there = RegistryTags(place)
    assert there.points_to(TAG) == there.points_to("known-good") == evidence["digest"]
    # Another host knows only the name of the registry.
    found = in_registry(Results(tmp_path / "elsewhere"), place)
    assert json.loads(found.model_dump_json(by_alias=True)) == evidence
    # On this host, the tag is also found in the engine.
    assert resolve_tag(None, read_host(REAL_ROOT), results, time.time()) == found


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_host_that_never_ran_the_matrix_pulls_the_tag_into_an_empty_store_and_trains(
    real: bool,
    place: str,
    results: Results,
    matrix_file: Path,
    private_engine: Any,
    tmp_path: Path,
    engine: Engine,
    request: pytest.FixtureRequest,
) -> None:
    base: dict[str, Any] = {}
    if real:
        request.getfixturevalue("images")
        results, base = Results(tmp_path / "real"), {"MATRIX_BASE": BASE}
        for _ in range(2):
            matrix_command(matrix_file, results.folder, "run-cell", "cpu-plain", **base)
    done = matrix_command(matrix_file, results.folder, "promote", "--registry", place, "--json", **base)
    (evidence,) = json.loads(done.stdout)["promoted"]
    private = private_engine.start()
    assert private.client.images.list() == []
    elsewhere = Results(tmp_path / "elsewhere")
    there = {"DOCKER_HOST": private_engine.address, **base}
    words = (*training(results, tmp_path), "--registry", place, "--json")
    ended = json.loads(matrix_command(matrix_file, elsewhere.folder, *words, **there).stdout)
    assert Path(ended["model"]) == tmp_path / "TRAINING" / "mine.pt"
    assert Path(ended["model"]).stat().st_size
    (record,) = elsewhere.records()
    assert (record.outcome, record.intent.cell, record.intent.executor) == ("completed", "cpu-plain", "docker")
    # Nothing was built: the image that ran is the promoted one.
    assert [image.id for image in private.client.images.list()] == [record.intent.image]
    ran, promoted = find(private, record.intent.image or ""), find(engine, evidence["image"])
    assert ran is not None
    assert promoted is not None
    # Engines with containerd's store use other ids for the same image.
    assert (ran.layers, ran.labels) == (promoted.layers, promoted.labels)


def training(results: Results, folder: Path) -> tuple[str, ...]:
    """Return the words of a training with a user's file."""
    made = results.intent(results.finished()[0])
    assert made is not None
    data = Path(shutil.copyfile(made.data.path, folder / "mine.csv"))
    tiny = ("--lookback", "20", "--epochs", "1", "--loader-workers", "0")
    return ("train", "--data", str(data), "--output", str(folder / "TRAINING"), *tiny)


@pytest.mark.long
def test_the_same_again_changes_nothing(command: Command, place: str, results: Results, matrix_file: Path) -> None:
    for _ in range(2):
        command("promote", "--registry", place)
    assert len(RegistryTags(place).moves()) == len(read_moves(results)) == 1
    command(*run_cell(matrix_file))
    command("promote", "--registry", place)
    assert [move.evidence.runs for move in RegistryTags(place).moves()] == [2, 3]


def test_a_dry_run_changes_nothing(command: Command, place: str, results: Results, engine: Engine) -> None:
    assert "would be cpu-plain" in command("promote", "--registry", place, "--dry-run").stdout
    assert RegistryTags(place).moves() == read_moves(results) == []
    assert find(engine, f"vpoc:{TAG}") is None


def test_a_demoted_tag_cannot_be_pulled_and_can_be_earned_again(
    command: Command, place: str, results: Results, engine: Engine
) -> None:
    command("promote", "--registry", place)
    digest = RegistryTags(place).points_to(TAG)
    command("demote", TAG, "--reason", "it hangs at night", "--registry", place)
    assert find(engine, f"vpoc:{TAG}") is None
    for tag in (TAG, "known-good"):
        assert RegistryTags(place).points_to(tag) is None
        with pytest.raises(UserError):
            raise_on_pull(engine, f"{place}/vpoc", tag)
    with pytest.raises(NothingPromotedError):
        in_registry(results, place)
    with pytest.raises(NothingPromotedError):
        resolve_tag(None, read_host(REAL_ROOT), results, time.time())
    assert "not in force in" in told(command("demote", TAG, "--reason", "again", "--registry", place, expected=2))
    command("promote", "--registry", place)
    assert RegistryTags(place).points_to(TAG) == digest
    lines = command("tags", TAG, "--registry", place).stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["promoted", "demoted", "promoted"]
    assert lines[1].endswith(": it hangs at night")


def raise_on_pull(engine: Engine, repository: str, tag: str) -> None:
    # Some engines refuse at once, others at the end of their progress messages.
    with engine_errors("pulling"):
        follow_transfer(engine.client.api.pull(repository, tag, stream=True, decode=True), "pulling", lambda _: None)


def test_the_alias_is_not_demoted_by_itself(command: Command) -> None:
    assert "is an alias" in told(command("demote", "known-good", "--reason", "x", expected=2))


@pytest.mark.parametrize("words", [("promote",), ("tags",)])
def test_a_registry_that_is_down_is_one_line_and_nothing_is_half_done(
    words: tuple[str, ...], command: Command, results: Results, engine: Engine
) -> None:
    line = told(command(*words, "--registry", "127.0.0.1:1", expected=2))
    refused = "[Errno 111] Connection refused; check its name and the network"
    assert line == f"matrix: registry 127.0.0.1:1 does not answer: {refused}"
    assert not (results.folder / PROMOTIONS).exists()
    assert find(engine, f"vpoc:{TAG}") is None


def test_a_registry_that_goes_down_in_between_leaves_the_tag_where_it_was(
    pushed: str, registry_storage: Path, matrix_file: Path, results: Results, tmp_path: Path, command: Command
) -> None:
    with serve_registry(registry_storage, tmp_path / "one.yml") as (host, process):

        def notify(text: str) -> None:
            if text.startswith("pushing"):
                process.kill()
                process.wait()

        with pytest.raises(UserError):
            promote(
                results,
                load_matrix(matrix_file, Given(os.environ["MATRIX_BASE"])),
                None,
                f"{host}/{pushed}",
                time.time(),
                notify,
            )
    assert read_moves(results) == []
    with serve_registry(registry_storage, tmp_path / "two.yml") as (host, _):
        there = RegistryTags(f"{host}/{pushed}")
        assert there.moves() == []
        assert there.points_to(TAG) is None
        command("promote", "--registry", f"{host}/{pushed}")
        assert in_registry(results, f"{host}/{pushed}").tag == TAG


def test_a_tag_that_somebody_else_moved_is_reported_and_taken_back_when_asked(
    command: Command, place: str, results: Results
) -> None:
    command("promote", "--registry", place)
    ours = RegistryTags(place).points_to(TAG)
    repository = Repository(f"{place}/vpoc")
    foreign = repository.artifact("application/vnd.somebody.else+json", b"theirs", {}, None)
    repository.put_manifest(TAG, foreign)
    with pytest.raises(UserError, match=f"somebody moved {TAG} to {foreign.digest}"):
        in_registry(results, place)
    assert f"somebody else moved it to {foreign.digest}" in command("tags", "--registry", place).stderr
    for words in (("promote",), ("demote", TAG, "--reason", "x")):
        line = told(command(*words, "--registry", place, expected=2))
        assert f"somebody else moved {TAG}: it points to {foreign.digest}" in line
    assert RegistryTags(place).points_to(TAG) == foreign.digest
    command("promote", "--registry", place, "--replace", foreign.digest)
    assert RegistryTags(place).points_to(TAG) == ours
    assert in_registry(results, place).digest == ours


def test_a_tag_that_is_moved_while_the_image_is_pushed_stays_there(
    place: str, results: Results, matrix_file: Path, command: Command
) -> None:
    repository = Repository(f"{place}/vpoc")
    foreign = repository.artifact("application/vnd.somebody.else+json", b"theirs", {}, None)

    def notify(_: str) -> None:
        repository.put_manifest(TAG, foreign)

    with pytest.raises(UserError, match="somebody else moved known-good-cpu meanwhile; nothing was changed"):
        promote(results, load_matrix(matrix_file, Given(os.environ["MATRIX_BASE"])), None, place, time.time(), notify)
    assert RegistryTags(place).points_to(TAG) == foreign.digest
    assert repository.manifest(HISTORY_TAG) is None
    assert read_moves(results) == []


def test_without_a_registry_the_engine_has_the_tags(command: Command, results: Results, engine: Engine) -> None:
    command("promote")
    image = read_moves(results)[0].evidence.image
    assert [LocalTags(engine, results).points_to(tag) for tag in (TAG, "known-good")] == [image, image]
    found = resolve_tag(None, read_host(REAL_ROOT), results, time.time())
    assert (found.reference, found.digest) == (image, None)
    assert f"{TAG} (known-good)" in command("tags").stdout
    engine.client.api.tag(BASE, "vpoc", TAG)
    assert "somebody else moved" in told(command("promote", expected=2))
    command("demote", TAG, "--reason", "a test", "--replace", str(engine.client.api.inspect_image(BASE)["Id"]))
    assert [LocalTags(engine, results).points_to(tag) for tag in (TAG, "known-good")] == [None, None]
    # Only the tags are removed, not the image.
    assert find(engine, image)


def fail_before_the_first_step(file: Path, results: Results, engine: Engine) -> None:
    """Run the cell, and kill its container as soon as it exists."""

    def killed() -> bool:
        for one in engine.client.containers.list(filters={"label": LABEL}):
            if one.labels[LABEL].startswith(str(results.folder)) and "train" in one.attrs["Args"]:
                one.kill()
                return True
        return False

    line = [str(CHECKOUT / ".venv/bin/matrix"), "--matrix", str(file), "--results", str(results.folder)]
    process = subprocess.Popen(
        [*line, *run_cell(file), "--workload", "endless"], cwd=CHECKOUT, stderr=subprocess.DEVNULL
    )
    wait_until(killed)
    assert process.wait(120) == 1


def test_a_tag_whose_runs_fail_later_is_shown_with_the_command_to_demote_it(
    command: Command, results: Results, matrix_file: Path, engine: Engine
) -> None:
    command("promote")
    for _ in range(3):
        fail_before_the_first_step(matrix_file, results, engine)
    done = command("tags")
    assert re.search(rf"{TAG}: it is suspended: its cell is \w+ now: 2 of 5 runs passed, ", done.stderr)
    assert f"matrix demote {TAG} --reason" in done.stderr
    assert "in all; " in told(command("promote", expected=2))


@pytest.mark.long
def test_every_example_in_the_docs_runs(command: Command, place: str, results: Results, tmp_path: Path) -> None:
    """The examples are run on the CPU's tag, because no GPU has a known-good tag yet."""
    for name in (".venv", ".cache", "Makefile", "requirements.txt", "pyproject.toml", "images", "harness"):
        (tmp_path / name).symlink_to(CHECKOUT / name)
    (tmp_path / "matrix.yaml").write_text(MATRIX, encoding="utf-8")
    (_, _, data, *_) = training(results, tmp_path)
    Path(data).rename(tmp_path / "merged.csv")
    page = (CHECKOUT / "docs" / "images.md").read_text(encoding="utf-8")
    text = page.partition("\n## Known-good tags\n")[2].partition("\n## ")[0]
    lines = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(lines) > 5
    for line in lines:
        # The data here has only a few weeks, so it needs a short lookback.
        shell = line.replace("make train", "make -o .venv/.ready train LOOKBACK=20")
        shell = shell.replace("ghcr.io/me", place).replace("gfx1100", "cpu")
        done = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert [move.move for move in read_moves(results)] == ["promoted", "promoted", "demoted"]


def test_credentials_are_dockers_own(
    pushed: str, registry_storage: Path, command: Command, results: Results, tmp_path: Path
) -> None:
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    config = tmp_path / "docker" / "config.json"
    config.parent.mkdir()
    variables = {"DOCKER_CONFIG": str(config.parent)}
    closed = f"auth: {{htpasswd: {{realm: x, path: {tmp_path}/htpasswd}}}}\n"
    with serve_registry(registry_storage, tmp_path / "closed.yml", closed) as (host, _):
        promoting = ("promote", "--registry", f"{host}/{pushed}")
        for kept in ({}, {"auths": {host: {"auth": WRONG}}}):
            config.write_text(json.dumps(kept))
            assert f"`docker login {host}`" in told(command(*promoting, expected=2, **variables))
        assert read_moves(results) == []
        config.write_text(json.dumps({"auths": {host: {"auth": RIGHT}}}))
        command(*promoting, **variables)
        listed = json.loads(command("tags", "--registry", f"{host}/{pushed}", "--json", **variables).stdout)
        (state,) = listed["tags"]
        assert state["valid_here"]
