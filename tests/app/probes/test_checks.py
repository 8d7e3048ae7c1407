"""Tests of the checks on the CPU: they pass where the numbers are right, and fail when one number is wrong."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time

import pytest
import torch
from torch.nn import functional

from vpoc.probes.all_checks import ALL_CHECKS
from vpoc.probes.checks import memory, networks, products, several, stack
from vpoc.probes.host_memory import free_host_memory
from vpoc.probes.numbers import require_close, require_equal
from vpoc.probes.site import Answer, Site, Skipped, WrongResultError

MB = 1 << 20


@pytest.fixture
def site(tmp_path):
    return Site("cpu", tmp_path, time.monotonic() + 60)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_check_has_its_check():
    modules = {module.__name__: module for module in (memory, networks, products, several, stack)}
    for check in ALL_CHECKS:
        module, _, function = check.function.partition(":")
        assert callable(getattr(modules[module], function))
    assert len({check.name for check in ALL_CHECKS}) == len(ALL_CHECKS)


def test_stack(site):
    assert re.fullmatch(r"torch \S+ \(.+\), numpy [\d.]+, Python [\d.]+; imported in [\d.]+ s", stack.imports(site))
    assert re.fullmatch(r"cpu .+ [\d.]+ GiB", stack.device(site))


@pytest.mark.slow
def test_memory(site):
    assert memory.allocate(site) == "4 KB, 1 MB, 20 MB, 256 MB, filled and read back"
    assert memory.copy(site, str(16 * MB)) == "4 KB, 64 KB, 1 MB, 16 MB unchanged"
    assert memory.fragmented(site, str(512 * MB)) == "230 MB in one piece after 4 blocks of 64 MB on cpu"


def test_a_copy_that_changes_one_word_is_seen(site, monkeypatch):
    clone = torch.Tensor.clone

    def careless(tensor):
        copied = clone(tensor)
        copied[1000] += 1
        return copied

    monkeypatch.setattr(torch.Tensor, "clone", careless)
    with pytest.raises(
        WrongResultError, match=r"copy of 4 KB in host memory: 1 of 1024 numbers are wrong; .* at 1000,"
    ):
        memory.copy(site, "4096")


def test_copies_are_left_out_where_memory_is_short(site, monkeypatch):
    monkeypatch.setattr(memory, "free_host_memory", lambda: 100 * 1024)
    assert memory.copy(site, str(64 * 1024)) == (
        "4 KB unchanged; 64 KB left out on cpu: 100 KB of host memory free, 256 KB needed"
    )
    monkeypatch.setattr(memory, "free_host_memory", lambda: 0)
    with pytest.raises(Skipped, match="4 KB left out on cpu: 0 B of host memory free, 16 KB needed"):
        memory.copy(site, "4096")
    with pytest.raises(Skipped, match="only 0 B of memory free on cpu, 512 MB are needed"):
        memory.fragmented(site)


def test_of_a_gpu_the_share_asked_for_stays_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (8 * MB, 10 * MB))
    gpu = torch.device("cuda", 0)
    assert memory._room(gpu, 0.3) == 5 * MB
    assert memory._lacking(2 * MB, gpu, 0.3) == "5 MB of its memory free, 6 MB needed"
    assert memory._lacking(2 * MB, gpu, 0.2) == ""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(products.LARGEST))
def test_products(site, dtype):
    assert products.matmul(site, dtype) == "5 shapes, plain, transposed and batched, exact"
    products.linear_8_412_896(site, torch.device("cpu"))
    assert site.stage() == "m 8, n 412, k 896 in bfloat16 on cpu"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(products.LARGEST))
def test_wanted_products_are_exact(dtype):
    for rows, terms, columns in (*products.SHAPES, (412, 896, 8)):
        left, right, wanted = products._product(rows, terms, columns, dtype)
        assert wanted.dtype == getattr(torch, dtype)
        assert torch.equal(wanted.long(), left @ right)
        assert torch.equal((wanted + 1).long(), left @ right + 1)


def test_a_wrong_product_is_seen(site, monkeypatch):
    bmm = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: bmm(a, b) + 1)
    with pytest.raises(WrongResultError, match=r"product 1 in bfloat16, batched: 1 of 1 numbers are wrong"):
        products.matmul(site, "bfloat16")


@pytest.mark.parametrize(("parameters", "what"), [(1, "linear layer"), (2, "linear layer with bias")])
def test_a_wrong_linear_layer_is_seen(site, monkeypatch, parameters, what):
    linear = functional.linear

    def wrong(rows, *given):
        out = linear(rows, *given)
        return out.index_fill_(1, torch.tensor([7]), 9) if len(given) == parameters else out

    monkeypatch.setattr(functional, "linear", wrong)
    with pytest.raises(
        WrongResultError, match=rf"{what} in float32: .* of 3296 numbers are wrong; the first, at 7, is 9"
    ):
        products.linear_8_412_896(site, torch.device("cpu"))


@pytest.mark.slow
def test_addmm_and_convolution(site, monkeypatch):
    assert products.addmm(site) == "5 shapes, exact"
    assert products.convolution(site).startswith("answers and gradients within ")
    addmm, conv1d = torch.addmm, functional.conv1d
    monkeypatch.setattr(torch, "addmm", lambda c, a, b, **factors: addmm(c, a, b))
    with pytest.raises(WrongResultError, match="addmm with factors"):
        products.addmm(site)
    monkeypatch.setattr(
        functional,
        "conv1d",
        lambda rows, weight, **how: conv1d(rows, weight, **how) * (1.01 if rows.dtype is torch.float32 else 1),
    )
    with pytest.raises(WrongResultError, match=r"convolution: 0\.01 of its length away"):
        products.convolution(site)


@pytest.mark.slow
def test_attention(site, monkeypatch):
    monkeypatch.setattr(networks, "BATCHES", (2, 3))
    assert re.fullmatch(r"batches of 2 and 3, within \S+e-0[67] of the CPU's float64", networks.forward(site))
    said = r"batches of 2 and 3, 1 passes each, within \S+ in float32 and \S+ in bfloat16 of the CPU's float64"
    assert re.fullmatch(said, networks.backward(site))


class Crooked(torch.autograd.Function):
    """A function whose forward pass is right and whose backward pass is wrong."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.5 if gradient.dtype is torch.float32 else gradient


@pytest.mark.slow
def test_wrong_attention_is_seen(site, monkeypatch):
    attention = functional.scaled_dot_product_attention
    monkeypatch.setattr(networks, "BATCHES", (2,))
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda *given: Crooked.apply(attention(*given)))
    networks.forward(site)
    with pytest.raises(WrongResultError, match=r"gradient for a batch of 2 in float32: 0\.\d+ of its length away"):
        networks.backward(site)
    monkeypatch.setattr(
        functional,
        "scaled_dot_product_attention",
        lambda q, k, v: v if q.dtype is torch.float32 else attention(q, k, v),
    )
    with pytest.raises(WrongResultError, match="answers for a batch of 2"):
        networks.forward(site)


def test_optimizer(site, monkeypatch):
    assert networks.optimizer_step(site) == "5 steps agree with the formula in float64"
    monkeypatch.setattr(torch.optim, "Adam", torch.optim.AdamW)
    with pytest.raises(WrongResultError, match="way of Adam"):
        networks.optimizer_step(site)


def test_no_compiler_is_no_fault_of_the_stack(site, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(Skipped, match=r"needs a C\+\+ compiler \(g\+\+"):
        networks.compiled(site)
    with pytest.raises(Skipped, match="needs a C compiler"):
        networks.require_compiler("cuda")
    for name in ("g++", "gcc"):
        (tmp_path / name).symlink_to(shutil.which("true", path=os.defpath))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(Skipped, match=r"needs Python\.h"):
        networks.require_compiler("cpu")
    (tmp_path / "Python.h").touch()
    networks.require_compiler("cpu")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Skipped, match="needs Triton"):
        networks.require_compiler("cuda")


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (ModuleNotFoundError("No module named 'setuptools'", name="setuptools"), "needs the package setuptools"),
        (RuntimeError("Dynamo is not supported on Python 3.12+"), "no torch.compile for this Python: Dynamo is not"),
    ],
)
def test_where_torch_compile_is_not_to_be_had(site, monkeypatch, failure, said):
    def compile_nothing(model, **how):
        try:
            raise failure
        except ModuleNotFoundError as cause:
            raise RuntimeError("backend='inductor' raised:") from cause

    monkeypatch.setattr(networks, "require_compiler", lambda device: None)
    monkeypatch.setattr(torch, "compile", compile_nothing)
    with pytest.raises(Skipped, match=said):
        networks.compiled(site)


def test_a_compiler_that_breaks_is_not_skipped(site, monkeypatch, tmp_path):
    def broken(model, **how):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(networks, "require_compiler", lambda device: None)
    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(RuntimeError, match="no kernel"):
        networks.compiled(site)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch, "compile", lambda model, **how: model)
    with pytest.raises(Skipped, match="it compiled nothing"):
        networks.compiled(site)


def test_between_gpus_there_is_nothing_to_do_on_a_cpu(site):
    for check in (several.peer_copy, several.data_parallel):
        with pytest.raises(Skipped, match="this is between GPUs"):
            check(site)
    with pytest.raises(Skipped, match="hipBLASLt is a library for GPUs"):
        products.hipblaslt_shape(site)


@pytest.mark.slow
def test_all_reduce(site):
    assert several.all_reduce(site) == "2 ranks over gloo, sums exact"
    assert re.fullmatch(r"rank 0: (sum 3 of 67108864 bytes on cpu|leaving); rank 1: .*", site.stage())


def test_a_rank_that_dies_ends_the_others(site, monkeypatch):
    start = several._start_rank
    ranks = []

    def fragile(place, function, rank, *arguments):
        dying = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
        ranks.append(subprocess.Popen(dying) if rank == "1" else start(place, function, rank, *arguments))
        return ranks[-1]

    monkeypatch.setattr(several, "_start_rank", fragile)
    with pytest.raises(RuntimeError, match="rank 1: died of SIGKILL, no answer"):
        several.all_reduce(site)
    assert [rank.returncode for rank in ranks] == [-signal.SIGTERM, -signal.SIGKILL]


def test_what_the_ranks_said():
    passed, wrong = Answer("passed", "sums exact"), Answer("wrong-result", "3 instead of 4")
    assert several._details([0, 0], [passed, passed]) == ["sums exact", "sums exact"]
    with pytest.raises(WrongResultError, match="rank 1: 3 instead of 4"):
        several._details([1, 1], [Answer("failed", "connection closed"), wrong])
    with pytest.raises(RuntimeError, match="rank 0: exit status 1, connection closed"):
        several._details([1, None], [Answer("failed", "connection closed"), None])
    with pytest.raises(RuntimeError, match="rank 1: exit status 0, no answer"):
        several._details([0, 0], [passed, None])


def test_numbers_that_are_no_numbers():
    with pytest.raises(WrongResultError, match=r"x: nan of its length away"):
        require_close(torch.tensor([1.0, float("nan")]), torch.ones(2), 0.1, "x")
    with pytest.raises(WrongResultError, match="the first, at 1, is nan instead of 1"):
        require_equal(torch.tensor([1.0, float("nan")]), torch.ones(2), "x")
    with pytest.raises(WrongResultError, match=r"shape \(2,\) instead of \(3,\)"):
        require_equal(torch.ones(2), torch.ones(3), "x")
    with pytest.raises(WrongResultError, match=r"shape \(2,\) instead of \(3,\)"):
        require_close(torch.ones(2), torch.ones(3), 1, "x")
    assert require_close(torch.tensor([1.1]), torch.ones(1), 0.2, "x") == pytest.approx(0.1)


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_room(tmp_path):
    write(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   4096 kB\n", "proc/self/cgroup": "0::/job/step\n"})
    assert free_host_memory(tmp_path) == 4 * MB
    group = {"memory.max": "max\n", "memory.current": "5\n", "memory.stat": "anon 1\n"}
    write(tmp_path / "sys/fs/cgroup/job/step", group)
    assert free_host_memory(tmp_path) == 4 * MB
    job = {"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "anon 1\ninactive_file 50\n"}
    write(tmp_path / "sys/fs/cgroup/job", job)
    assert free_host_memory(tmp_path) == 350
    write(tmp_path, {"proc/self/cgroup": "5:cpu,memory:/\n0::/\n"})
    first = {
        "memory.limit_in_bytes": "900\n",
        "memory.usage_in_bytes": "1000\n",
        "memory.stat": "total_inactive_file 50\n",
    }
    write(tmp_path / "sys/fs/cgroup/memory", first)
    assert free_host_memory(tmp_path) == 0
