from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.base.files.hashes import file_hash
from harness.environments.python.pins import lock_name
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.registry.tags import known_good
from harness.registry.tags.known_good import (
    KnownGood,
    NotForThisHostError,
    NothingPromotedError,
    lock_of,
    resolve_tag,
    why_not_usable,
)
from harness.registry.tags.promotions import TagMove, append_move
from tests.harness.gpu_tree import a_gpu

Evidence = Callable[..., KnownGood]
NOW = 2_000_000_000.0


@pytest.fixture(autouse=True)
def _no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_good, "LOCKS", tmp_path / "locks")


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


@pytest.fixture
def of_gpu(make_evidence: Evidence) -> Evidence:
    def make(**changes: Any) -> KnownGood:
        values = {"scope": "gfx1100", "gfx": ("gfx1100",), "gpu_count": 1, "driver": "6.8.5", "cell": "rocm-plain"}
        values |= changes
        return make_evidence(tag=f"known-good-{values['scope']}", **values)

    return make


@pytest.fixture
def gpu_host(dual_host: HostFacts) -> HostFacts:
    return dual_host.model_copy(update={"driver": "6.8.5"})


def promoted(results: Results, evidence: KnownGood) -> KnownGood:
    append_move(results, TagMove(move="promoted", at=evidence.promoted_at, evidence=evidence))
    return evidence


def test_what_used_devices_as_asked_comes_first(results: Results, of_gpu: Evidence, gpu_host: HostFacts) -> None:
    alone = promoted(results, of_gpu(promoted_at=NOW))
    both = promoted(results, of_gpu(scope="gfx1100-ddp-2", gpu_count=2, promoted_at=NOW - 1))
    assert resolve_tag(None, gpu_host, results, NOW, strategy="ddp") == both
    assert resolve_tag(None, gpu_host, results, NOW, strategy="single") == alone
    assert resolve_tag(None, gpu_host, results, NOW, strategy="fsdp") == alone


def test_a_tag_of_a_cell_that_the_matrix_lacks_comes_last(
    results: Results, of_gpu: Evidence, gpu_host: HostFacts
) -> None:
    older = promoted(results, of_gpu(promoted_at=NOW - 1))
    newer = promoted(results, of_gpu(scope="gfx1100-ddp-2", gpu_count=2, promoted_at=NOW, cell="gone-plain"))
    assert resolve_tag(None, gpu_host, results, NOW) == newer
    assert resolve_tag(None, gpu_host, results, NOW, cells=("rocm-plain",)) == older
    assert resolve_tag(None, gpu_host, results, NOW, strategy="ddp", cells=("rocm-plain",)) == older
    assert resolve_tag(None, gpu_host, results, NOW, cells=("another-plain",)) == newer


def test_refused_is_the_tag_of_a_gpu_where_there_is_one(
    results: Results, make_evidence: Evidence, of_gpu: Evidence, gpu_host: HostFacts
) -> None:
    # Both are promoted at the same time, the CPU's first.
    promoted(results, make_evidence(promoted_at=NOW))
    promoted(results, of_gpu(promoted_at=NOW))
    with pytest.raises(NotForThisHostError, match=r"known-good-gfx1100 may not be used here: .*kernel") as refused:
        resolve_tag(None, gpu_host.model_copy(update={"kernel": "9.9"}), results, NOW)
    assert refused.value.evidence.cell == "rocm-plain"


def test_evidence_of_the_same_host_holds(make_evidence: Evidence, host: HostFacts) -> None:
    assert why_not_usable(make_evidence(), host, NOW) is None


def test_what_a_cpu_did_is_none_of_a_host_with_gpus(make_evidence: Evidence, gpu_host: HostFacts) -> None:
    """`tags` and `train` both ask here."""
    assert "for a CPU, and this host has" in str(why_not_usable(make_evidence(), gpu_host, NOW))


def test_evidence_expires(make_evidence: Evidence, host: HostFacts) -> None:
    evidence = make_evidence()
    assert why_not_usable(evidence, host, evidence.expires_at - 1) is None
    assert "expired on 20" in str(why_not_usable(evidence, host, evidence.expires_at))


def test_another_kernel_driver_or_lock_ends_it(of_gpu: Evidence, gpu_host: HostFacts) -> None:
    evidence = of_gpu(environment={"lock": "1" * 64})
    assert why_not_usable(evidence, gpu_host, NOW) is None
    assert why_not_usable(evidence, gpu_host, NOW, lock="1" * 64) is None
    assert "kernel" in str(why_not_usable(evidence, gpu_host.model_copy(update={"kernel": "6.2"}), NOW))
    assert "driver 6.8.5" in str(why_not_usable(evidence, gpu_host.model_copy(update={"driver": "6.9"}), NOW))
    assert "the lock of cpu has changed" in str(why_not_usable(evidence, gpu_host, NOW, lock="2" * 64))


def test_other_firmware_of_its_gpus_ends_it(of_gpu: Evidence, gpu_host: HostFacts) -> None:
    def host_with(*firmware: dict[str, str]) -> HostFacts:
        gpus = (gpu.model_copy(update={"firmware": one}) for gpu, one in zip(gpu_host.gpus, firmware, strict=True))
        return gpu_host.model_copy(update={"gpus": tuple(gpus)})

    old, new = {"mes": "0x82", "smc": "0x4e"}, {"mes": "0x83", "smc": "0x4e"}
    evidence = of_gpu(firmware={"gfx1100": [old]})
    assert why_not_usable(evidence, host_with(old, old), NOW) is None
    assert why_not_usable(evidence, host_with(new, new), NOW) == (
        "its runs had firmware mes 0x82, and GPU 0 of this host has mes 0x83"
    )
    # One GPU with that firmware is enough for this tag, but not for a tag of two GPUs.
    assert why_not_usable(evidence, host_with(new, old), NOW) is None
    two = of_gpu(scope="gfx1100-ddp-2", gpu_count=2, firmware={"gfx1100": [old, old]})
    assert "GPU 1 of this host has mes 0x83" in str(why_not_usable(two, host_with(old, new), NOW))
    # Nothing is refused if the driver does not report firmware, or the tag is from before firmware was kept.
    assert why_not_usable(evidence, host_with({}, {}), NOW) is None
    before = {name: value for name, value in of_gpu().model_dump().items() if name != "firmware"}
    assert why_not_usable(KnownGood.model_validate(before), host_with(new, new), NOW) is None


def test_a_driver_that_a_cpu_never_used_is_no_matter(make_evidence: Evidence, host: HostFacts) -> None:
    assert why_not_usable(make_evidence(driver="6.8.5"), host, NOW) is None


def test_the_host_needs_gpus_of_that_kind_and_enough_of_them(
    of_gpu: Evidence, gpu_host: HostFacts, host: HostFacts
) -> None:
    two = of_gpu(scope="gfx1100-ddp-2", gpu_count=2)
    assert why_not_usable(two, gpu_host, NOW) is None
    one = gpu_host.model_copy(update={"gpus": gpu_host.gpus[:1]})
    assert "for 2 x gfx1100, and this host has 1 x gfx1100" in str(why_not_usable(two, one, NOW))
    assert why_not_usable(of_gpu(), one, NOW) is None
    assert "no GPU that torch has kernels for" in str(why_not_usable(of_gpu(), host, NOW))
    other = gpu_host.model_copy(update={"gpus": (a_gpu(0).model_copy(update={"gfx": "gfx1030"}),)})
    assert "this host has 1 x gfx1030" in str(why_not_usable(of_gpu(), other, NOW))


def test_the_newest_that_fits_is_taken(results: Results, of_gpu: Evidence, gpu_host: HostFacts) -> None:
    old = promoted(results, of_gpu(promoted_at=NOW - 10))
    new = promoted(results, of_gpu(scope="gfx1100-ddp-2", gpu_count=2, promoted_at=NOW - 5))
    promoted(results, of_gpu(scope="gfx1030", gfx=("gfx1030",), promoted_at=NOW - 1))
    assert resolve_tag(None, gpu_host, results, NOW) == new
    one = gpu_host.model_copy(update={"gpus": gpu_host.gpus[:1]})
    assert resolve_tag(None, one, results, NOW) == old


def test_where_nothing_stands_it_says_how_to_get_there(
    results: Results, host: HostFacts, make_evidence: Evidence
) -> None:
    with pytest.raises(NothingPromotedError, match=r"no known-good tag is in force; `matrix promote`"):
        resolve_tag(None, host, results, NOW)
    evidence = promoted(results, make_evidence())
    append_move(results, TagMove(move="demoted", at=NOW, reason="it hangs", evidence=evidence))
    with pytest.raises(NothingPromotedError):
        resolve_tag(None, host, results, NOW)


def test_a_refusal_says_why_and_how_to_override(results: Results, host: HostFacts, of_gpu: Evidence) -> None:
    evidence = promoted(results, of_gpu())
    with pytest.raises(NotForThisHostError, match=r"known-good-gfx1100 may not be used here: .*--cell") as refused:
        resolve_tag(None, host, results, NOW)
    assert refused.value.evidence == evidence
    assert "\n" not in str(refused.value)


def test_a_host_with_gpus_takes_no_cpu_tag(results: Results, gpu_host: HostFacts, make_evidence: Evidence) -> None:
    promoted(results, make_evidence())
    with pytest.raises(NotForThisHostError, match="it is for a CPU, and this host has 2 x gfx1100"):
        resolve_tag(None, gpu_host, results, NOW)


def test_the_lock_of_this_checkout_is_looked_at(
    results: Results, host: HostFacts, make_evidence: Evidence, tmp_path: Path
) -> None:
    lock = tmp_path / "locks" / "cpu.txt"
    lock.parent.mkdir()
    lock.write_text("torch==1\n")
    evidence = promoted(results, make_evidence(environment={"lock": file_hash(lock)}))
    assert resolve_tag(None, host, results, NOW) == evidence
    lock.write_text("torch==2\n")
    with pytest.raises(NotForThisHostError, match="the lock of cpu has changed"):
        resolve_tag(None, host, results, NOW)


def test_a_lock_for_the_packages_of_one_gpu_is_looked_at_too(of_gpu: Evidence, matrix: Matrix, tmp_path: Path) -> None:
    stack = matrix.stacks["rocm10.0.0-torch2.13.0"].model_copy(update={"targets": ("gfx1100",)})
    lock = tmp_path / "locks" / f"{lock_name(stack)}.txt"
    lock.parent.mkdir()
    lock.write_text("torch==2\n")
    assert lock_of(of_gpu(stack=stack.name)) == file_hash(lock)
    assert lock_of(of_gpu(stack=stack.name, gfx=("gfx1030",))) is None


def test_a_tag_from_before_its_own_host_changed_is_refused_there(of_gpu: Evidence, gpu_host: HostFacts) -> None:
    had = {"VBIOS of GPU 0": "113-A", "amdgpu.mes": "0"}
    here = gpu_host.model_copy(update={"kernel_parameters": {"amdgpu.mes": "1"}})
    why = "its runs were on this host before it changed: amdgpu.mes was 0, is 1"
    assert why_not_usable(of_gpu(settings=had), here, NOW) == why
    assert why_not_usable(of_gpu(settings={**had, "amdgpu.mes": "1"}), here, NOW) is None
    # Nor if the evidence is from before settings were kept, or from another machine of this kind.
    assert why_not_usable(of_gpu(), here, NOW) is None
    assert why_not_usable(of_gpu(settings=had, host_fingerprint="0" * 16), here, NOW) is None
