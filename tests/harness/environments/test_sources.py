"""Tests of every kind of source of wheels, from the lock to the fetch, on a stand-in index on loopback."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.base import certificates
from harness.base.errors import UserError
from harness.environments.python import packages, pins, source_packages, wheelhouse
from harness.environments.python.wheelhouse import fetch, installable, locked_versions, read_lock, requirement
from harness.matrix.programs import Program, ProgramCopy
from harness.matrix.stacks import Stack
from harness.rehearsal.stand_in_index import StandIn
from tests.harness.stand_in_index import private_authority, served, write_mirror

MakeStack = Callable[..., Stack]


@pytest.fixture
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StandIn]:
    """Serve the stand-in, over TLS with an authority of its own if a test is parametrized so."""
    certificate = private_authority(tmp_path) if getattr(request, "param", None) else None
    with served(certificate) as server:
        yield server


@pytest.fixture
def make_stack(index: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeStack:
    """Return a function that makes a stack whose wheels come from the stand-in, with its own pins and wheelhouse."""
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS", "PIP_INDEX_URL", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setattr(pins, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(pins, "CACHE", tmp_path / "cache")
    for module in (wheelhouse, source_packages):
        monkeypatch.setattr(module, "WHEELS", tmp_path / "wheels")
    (tmp_path / "locks").mkdir()

    def make(place: str, rocm: str, torch: str, **more: Any) -> Stack:
        known: dict[str, Any] = {"mirror": index.url(place), "pypi": index.url("pypi"), **more}
        stack = Stack(name=f"rocm{rocm}-torch{torch}", accelerator="rocm", rocm=rocm, torch=torch, **known)
        pins.pins_file(stack).write_text(f"torch=={torch}+{stack.label}\nnumpy\npolars\n", encoding="utf-8")
        return stack

    return make


def locked(stack: Stack) -> dict[str, str]:
    """Lock a stack; return its versions by package name."""
    return locked_versions(pins.ensure_lock(stack))


@pytest.mark.slow
def test_a_wheel_with_rocm_inside(make_stack: MakeStack) -> None:
    stack = make_stack("rocm6.3", "6.3", "2.9.1")
    assert locked(stack) == {
        "torch": "2.9.1+rocm6.3",
        "pytorch-triton-rocm": "3.5.1",
        # The newest version, not the old copy on PyTorch's index.
        "numpy": "2.0",
        "polars": "2.0",
    }
    wheels = fetch(stack, pins.lock_file(stack))
    assert wheels["torch"].name.startswith("torch-2.9.1+rocm6.3-cp311")


def test_what_is_built_against_torch_comes_from_where_the_stacks_torch_does(
    make_stack: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "PROGRAMS", tmp_path / "programs")
    stack = make_stack("rocm6.3", "6.3", "2.9.1")
    taken = ProgramCopy(folder="copy", version="1", requirements=("torchvision", "click"))
    program = Program(command=("x",), source="code", requirements="requirements.txt", taken=taken)
    folder = packages.ensure_packages(program, stack, None)
    assert folder is not None
    made = {place.name.partition(".dist-info")[0] for place in folder.glob("*.dist-info")}
    # PyPI's torchvision would not load; torch and numpy come from the stack.
    assert made == {"torchvision-0.24.1+rocm6.3", "click-2.0"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "source", "rocm", "torch", "more"),
    [
        ("rocm7.14", "pytorch-packages", "7.14", "2.14.0", {"triton-rocm"}),
        pytest.param(
            *("amd", "amd-7", "7.14.0", "2.12.0"),
            {"triton", "amd-torch-device-gfx1100", "amd-torch-device-gfx11", "numpy"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_rocm_as_packages_for_one_target(
    make_stack: MakeStack, index: StandIn, place: str, source: str, rocm: str, torch: str, more: set[str]
) -> None:
    stack = make_stack(place, rocm, torch, source=source, targets=("gfx1100",))
    versions = locked(stack)
    sdk = {"rocm", "rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-device-gfx1100"}
    assert versions.keys() == {"torch", "numpy", "polars"} | sdk | more
    # Not PyPI's 7.14.99, and no other package of somebody else's.
    assert {versions[name] for name in sdk} == {"7.14.0"}
    assert pins.lock_file(stack).name.startswith(f"{stack.name}-gfx1100-")
    wheels = fetch(stack, pins.lock_file(stack))
    assert wheels.keys() == versions.keys()
    # The meta package exists only as source, so the lock has the hash of the source and the wheel was built here.
    built = wheels["rocm"]
    assert built.parent.parent.name == "built"
    entry = next(one for one in read_lock(pins.lock_file(stack)) if one.name == "rocm")
    assert requirement(entry, built) != entry.text
    assert requirement(entry, built).startswith("rocm==7.14.0 --hash=sha256:")
    with installable(stack, pins.lock_file(stack)) as (options, lock):
        assert str(built.parent) in map(str, options)
        assert requirement(entry, built) in lock.read_text()
        assert entry.text not in lock.read_text()


@pytest.mark.slow
def test_another_target_is_another_lock_and_another_environment(make_stack: MakeStack) -> None:
    first = make_stack("amd", "7.14.0", "2.12.0", source="amd-7", targets=("gfx1100",))
    second = make_stack("amd", "7.14.0", "2.12.0", source="amd-7", targets=("gfx1201",))
    assert "rocm-sdk-device-gfx1201" in locked(second)
    assert "rocm-sdk-device-gfx1100" not in locked(second)
    locks = [pins.ensure_lock(stack).read_text() for stack in (first, second)]
    assert locks[0] != locks[1]


def test_an_index_that_refuses_torch_itself_is_an_error(make_stack: MakeStack, index: StandIn) -> None:
    stack = make_stack("amd", "7.14.0", "2.12.0", source="amd-7", targets=("gfx1100",))
    index.refuses.add("amd")
    with pytest.raises(UserError, match="torch") as caught:
        pins.ensure_lock(stack)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_source_package_with_another_hash_is_refused(make_stack: MakeStack) -> None:
    stack = make_stack("amd", "7.14.0", "2.12.0", source="amd-7", targets=("gfx1100",))
    lock = pins.ensure_lock(stack)
    text = re.sub(r"(rocm==7\.14\.0 .*?sha256:)\w{64}", r"\g<1>" + "1" * 64, lock.read_text(), flags=re.DOTALL)
    lock.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"rocm 7\.14\.0 cannot be fetched"):
        fetch(stack, lock)


@pytest.mark.slow
def test_a_mirror_in_a_folder(make_stack: MakeStack, index: StandIn, tmp_path: Path) -> None:
    write_mirror(index.places, tmp_path / "mirror")
    urls = {"mirror": (tmp_path / "mirror" / "amd").as_uri(), "pypi": (tmp_path / "mirror" / "pypi").as_uri()}
    stack = make_stack("amd", "7.14.0", "2.12.0", source="amd-7", targets=("gfx1100",), **urls)
    before = len(index.asked)
    assert fetch(stack, pins.ensure_lock(stack))["rocm"].parent.parent.name == "built"
    assert len(index.asked) == before
    assert pins.provenance(pins.lock_file(stack))["index"] == urls["mirror"]


@pytest.mark.slow
def test_a_folder_that_lists_files(make_stack: MakeStack) -> None:
    stack = make_stack("folder", "6.4.2", "2.6.0", source="amd-rel", python="3.12")
    assert locked(stack)["torch"] == "2.6.0+rocm6.4.2.git76481f7c"
    assert fetch(stack, pins.lock_file(stack))["torch"].name.startswith("torch-2.6.0+rocm6.4.2.git")


def test_a_name_and_a_password_in_a_url_are_not_noted(make_stack: MakeStack, index: StandIn) -> None:
    url = index.url("rocm6.3").replace("//", "//me:secret@")
    stack = make_stack("rocm6.3", "6.3", "2.9.1", mirror=url)
    lock = pins.ensure_lock(stack)
    assert pins.provenance(lock)["index"] == index.url("rocm6.3")
    assert "secret" not in lock.with_suffix(".json").read_text() + lock.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("index", ["with TLS"], indirect=True)
def test_a_private_authority_is_trusted_whatever_other_variables_say(
    make_stack: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "CACHE", tmp_path / "cache")
    for name in certificates.NAMED[1:]:
        monkeypatch.setenv(name, str(certificates.SYSTEM))
    monkeypatch.setenv("SSL_CERT_DIR", "/etc/ssl/certs")
    stack = make_stack("amd", "7.14.0", "2.12.0", source="amd-7", targets=("gfx1100",))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(UserError, match="stack rocm"):
        pins.ensure_lock(stack)
    monkeypatch.setenv(certificates.OWN, str(tmp_path / "authority.pem"))
    # uv, pip and the harness's own reader of pages all use the authority.
    assert fetch(stack, pins.ensure_lock(stack))["rocm"].parent.parent.name == "built"
