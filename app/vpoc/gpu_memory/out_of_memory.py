"""Errors that mean out of memory, by the library that reports them."""

import contextlib

import torch

FULL = 0.05
"""Free share of a card below which a library's failure to allocate counts as out of memory."""
ALLOCATION_FAILURES = (
    *("HIPBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED", "rocblas_status_memory_error"),
    *("CUDNN_STATUS_ALLOC_FAILED", "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "miopenStatusAllocFailed"),
    # A handle needs memory, too, and on a full card this is the usual message.
    *("HIPBLAS_STATUS_NOT_INITIALIZED", "CUBLAS_STATUS_NOT_INITIALIZED"),
)
"""Words in a RuntimeError of a library that could not allocate, or may not have been able to."""


def is_torch_out_of_memory(error: BaseException) -> bool:
    """Return whether torch's own allocator of GPU memory raised `error`."""
    # torch.OutOfMemoryError exists since torch 2.5; torch.cuda.OutOfMemoryError, the same class, is older.
    return isinstance(error, torch.cuda.OutOfMemoryError)


def is_runtime_out_of_memory(error: BaseException) -> bool:
    """Return whether HIP or CUDA, below torch's allocator, or JAX reported that a device is out of memory."""
    return _says(error, "out of memory", "hipErrorOutOfMemory", "cudaErrorMemoryAllocation", "RESOURCE_EXHAUSTED")


def is_host_out_of_memory(error: BaseException) -> bool:
    """Return whether the host is out of memory."""
    return isinstance(error, MemoryError) or _says(error, "DefaultCPUAllocator: can't allocate memory")


def is_library_allocation_failure(error: BaseException) -> bool:
    """Return whether a library of kernels (BLAS, convolutions) could not allocate memory beside the tensors.

    That alone does not prove out of memory: a broken stack reports the same with most of the memory free.
    """
    return _says(error, *ALLOCATION_FAILURES)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that memory, of a device or of the host, ran out.

    A library that could not allocate is out of memory only if a card is full: less than 5 % of it is free.
    """
    if is_torch_out_of_memory(error) or is_runtime_out_of_memory(error) or is_host_out_of_memory(error):
        return True
    return is_library_allocation_failure(error) and least_free_share() < FULL


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


def _says(error: BaseException, *words: str) -> bool:
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)
