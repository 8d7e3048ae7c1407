import warnings

import pytest
import torch
from torch.nn import functional

from vpoc.errors import UserError
from vpoc.models.by_name import ATTENTION, choose_sdpa

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _torchs_own_choice():
    yield
    choose_sdpa("auto", CPU, torch.float32, ())


def no_kernel(*_):
    raise RuntimeError("No available kernel. Aborting execution.")


def test_a_backend_is_tried_with_the_heads_of_each_model_before_it_is_used(monkeypatch):
    real, tried = functional.scaled_dot_product_attention, []

    def attention(query, key, value):
        tried.append((tuple(query.shape), query.dtype))
        return real(query, key, value)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)
    choose_sdpa("math", CPU, torch.bfloat16, ("mlp", *ATTENTION))
    assert tried == [((1, 8, 32, 32), torch.bfloat16), ((1, 4, 32, 32), torch.bfloat16)]
    tried.clear()
    choose_sdpa("math", CPU, torch.float32, ("mlp",))
    choose_sdpa("auto", CPU, torch.float32, ("attention",))
    assert tried == []


def test_a_device_without_the_kernel_is_a_line_with_the_reason_that_torch_gives(monkeypatch):
    def attention(*_):
        warnings.warn("Memory Efficient attention has been runtime disabled.", UserWarning, stacklevel=1)
        warnings.warn("Flash attention kernel not used because:", UserWarning, stacklevel=1)
        warnings.warn("Flash attention only supports gpu architectures of AMD Instinct (Triggered internally at "
                      "sdp_utils.cpp:7)", UserWarning, stacklevel=1)  # fmt: skip
        no_kernel()

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)
    why = "Flash attention only supports gpu architectures of AMD Instinct"
    said = rf"^--sdpa flash: torch .* no such kernel for float32 on this device \({why}\); choose auto or math$"
    with pytest.raises(UserError, match=said):
        choose_sdpa("flash", CPU, torch.float32, ("attention",))


def test_without_a_warning_the_error_itself_is_the_reason(monkeypatch):
    monkeypatch.setattr(functional, "scaled_dot_product_attention", no_kernel)
    with pytest.raises(UserError, match=r"\(No available kernel\. Aborting execution\.\)"):
        choose_sdpa("math", CPU, torch.float32, ("attention-small",))


def test_another_error_of_the_device_is_not_taken_for_a_missing_kernel(monkeypatch):
    def broken(*_):
        raise RuntimeError("HIP error: an illegal memory access was encountered")

    monkeypatch.setattr(functional, "scaled_dot_product_attention", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        choose_sdpa("math", CPU, torch.float32, ("attention",))
