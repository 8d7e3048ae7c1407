import pytest
import torch

from vpoc.errors import UserError
from vpoc.gpu_memory import out_of_memory
from vpoc.gpu_memory.out_of_memory import is_out_of_memory, least_free_share

BLAS = RuntimeError("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`")
LIBRARIES = [
    BLAS,
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("miopenStatusAllocFailed"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
]


def test_the_host_without_memory_is_known_by_what_torch_really_raises():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ..."),
        getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)(""),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("HIP error: out of memory\nHIP kernel errors might be asynchronously reported"),
        RuntimeError("Caught RuntimeError in replica 1 on device 1.\nRuntimeError: CUDA error: out of memory"),
        RuntimeError("hipErrorOutOfMemory"),
        MemoryError(),
        MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,)"),
    ],
)
def test_errors_that_mean_out_of_memory(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("HIP error: an illegal memory access was encountered"),
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
                     "workers are out of shared memory."),
        RuntimeError(""),
        ValueError("out of memory"),
        UserError("out of memory"),
        KeyboardInterrupt(),
    ],
)  # fmt: skip
def test_other_errors(error):
    assert not is_out_of_memory(error)


@pytest.mark.parametrize("error", LIBRARIES)
@pytest.mark.parametrize(("free", "expected"), [(0.049, True), (0.05, False), (0.9, False)])
def test_a_library_that_cannot_allocate_is_out_of_memory_only_on_a_full_card(monkeypatch, error, free, expected):
    monkeypatch.setattr(out_of_memory, "least_free_share", lambda: free)
    assert is_out_of_memory(error) is expected


class FakeCuda:
    """A stand-in for torch.cuda with three GPUs of 100 bytes: one unused by torch, one with 7 free, one that failed."""

    @staticmethod
    def device_count():
        return 3

    @staticmethod
    def memory_reserved(index):
        return (0, 50, 50)[index]

    @staticmethod
    def mem_get_info(index):
        if index == 0:
            raise AssertionError("a context was made on a device that is not ours")
        if index == 2:
            raise RuntimeError("HIP error: unspecified launch failure")
        return 7, 100


def test_the_fullest_card_is_asked_among_those_in_use(monkeypatch):
    for name in ("device_count", "memory_reserved", "mem_get_info"):
        monkeypatch.setattr(torch.cuda, name, getattr(FakeCuda, name))
    assert least_free_share() == 0.07


def test_without_a_card_nothing_is_full():
    assert torch.cuda.device_count() or least_free_share() == 1
