import pytest

from harness.host.gpus import amdgpu
from harness.host.gpus.amdgpu import memory_in_use, pci_address
from tests.harness.gpu_tree import ADDRESSES, TwoGpuHost, a_gpu, hanging_reads


def test_what_the_driver_tells_of_a_gpu(tree: TwoGpuHost) -> None:
    tree.use_memory(1, 7 << 30)
    assert [memory_in_use(a_gpu(n), tree.root) for n in (0, 1)] == [100 << 20, 7 << 30]
    assert tuple(pci_address(a_gpu(n), tree.root) for n in (0, 1)) == ADDRESSES


def test_what_it_does_not_tell_is_not_synthetic(tree: TwoGpuHost) -> None:
    tree.write(0, "mem_info_vram_used", "what\n")
    tree.write(0, "uevent", "DRIVER=amdgpu\n")
    assert memory_in_use(a_gpu(0), tree.root) is None
    assert pci_address(a_gpu(0), tree.root) is None
    without_node = a_gpu(1).model_copy(update={"render_node": None})
    assert memory_in_use(without_node, tree.root) is None
    assert pci_address(without_node, tree.root) is None


def test_a_driver_that_does_not_answer_is_not_waited_for(tree: TwoGpuHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amdgpu, "ANSWER_SECONDS", 0.2)
    with hanging_reads(tree.device(0) / "mem_info_vram_used"):
        assert memory_in_use(a_gpu(0), tree.root) is None
