"""Errors that mean out of memory, by the library that reports them."""

import contextlib

import torch

FULL = 0.05
"""Free share of a card below which a library's failure to allocate counts as out of memory."""
OUT_OF_MEMORY = (
    *("out of memory", "hipErrorOutOfMemory", "cudaErrorMemoryAllocation", "RESOURCE_EXHAUSTED"),
    "DefaultCPUAllocator: can't allocate memory",
)
"""Words of a RuntimeError of HIP, CUDA or JAX when a device, and of torch when the host, is out of memory."""
ALLOCATION_FAILURES = (
    *("HIPBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED", "rocblas_status_memory_error"),
    *("CUDNN_STATUS_ALLOC_FAILED", "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "miopenStatusAllocFailed"),
    # A handle needs memory, too, and on a full card this is the usual message.
    *("HIPBLAS_STATUS_NOT_INITIALIZED", "CUBLAS_STATUS_NOT_INITIALIZED"),
)
"""Words in a RuntimeError of a library that could not allocate, or may not have been able to."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that memory, of a device or of the host, ran out.

    A library of kernels (BLAS, convolutions) that could not allocate is out of memory only where a card is full, with
    less than 5 % free: a broken stack reports the same with most of the memory free.
    """
    # torch.OutOfMemoryError exists since torch 2.5; torch.cuda.OutOfMemoryError, the same class, is older.
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    said = str(error) if isinstance(error, RuntimeError) else ""
    if any(words in said for words in OUT_OF_MEMORY):
        return True
    return any(words in said for words in ALLOCATION_FAILURES) and least_free_share() < FULL


def least_free_share() -> float:
    """Free share of the fullest GPU that torch has used, from 0 to 1, by its driver.

    1 if there is none or none answers.
    """
    shares = []
    for index in range(torch.cuda.device_count()):
        # Asking about another device would create a context on it, which takes memory there.
        if torch.cuda.memory_reserved(index):
            # After some errors a device answers no more questions.
            with contextlib.suppress(RuntimeError):
                free, total = torch.cuda.mem_get_info(index)
                shares.append(free / total)
    return min(shares, default=1.0)
