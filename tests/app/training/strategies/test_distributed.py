import re
import shlex
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import run as launcher

from vpoc.commands.train import train_command
from vpoc.ranks.launch import Ranks
from vpoc.training.strategies import distributed
from vpoc.training.strategies.distributed import join, leave

GPU = torch.device("cuda", 1)
RANKS = Ranks(1, 2, 1, 2, rendezvous="/nowhere")


@pytest.fixture
def calls(monkeypatch):
    """Return the recorded calls of torch.distributed, which is replaced by a stand-in with NCCL and no other ranks."""
    made = {}

    def init_process_group(backend, **named):
        made["init"] = (backend, named)

    if "device_id" in distributed.inspect.signature(dist.init_process_group).parameters:

        def init_process_group(backend, device_id=None, **named):
            made["init"] = (backend, {**named, "device_id": device_id})

    monkeypatch.setattr(dist, "is_nccl_available", lambda: True, raising=False)
    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    monkeypatch.setattr(dist, "barrier", lambda device_ids=None: made.update(barrier=device_ids))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: made.update(destroyed=True))
    return made


def test_nccl_is_given_the_device_of_the_rank(calls):
    join(RANKS, None, GPU, 60)
    backend, named = calls["init"]
    assert backend == "nccl"
    assert (named["rank"], named["world_size"]) == (1, 2)
    assert named.get("device_id", GPU) == GPU


def test_gloo_takes_no_device(calls):
    join(RANKS, "gloo", GPU, 60)
    backend, named = calls["init"]
    assert backend == "gloo"
    assert named.get("device_id") is None


@pytest.mark.parametrize(("backend", "expected"), [("nccl", [1]), ("gloo", None)])
def test_the_last_barrier_names_the_device_where_the_library_would_guess(calls, monkeypatch, backend, expected):
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    leave(GPU)
    assert calls == {"barrier": expected, "destroyed": True}


def test_the_group_outlives_what_else_holds_it(tmp_path):
    """Otherwise the model's wrapper would end the group's threads while it holds Python's lock, which they may need."""
    join(Ranks(0, 1, 0, 1, str(tmp_path / "rendezvous")), "gloo", torch.device("cpu"), 30)
    group = dist.group.WORLD
    leave(torch.device("cpu"))
    assert not dist.is_initialized()
    assert distributed._LEFT[-1] is group


def test_torchrun_takes_what_the_docs_say():
    """The page's block needs two hosts, so it is not run: torch's launcher or ours must accept each of its words."""
    page = (Path(__file__).parents[4] / "docs" / "training.md").read_text()
    (line,) = re.findall(r"```text\n(GLOO.*?)```", page, re.DOTALL)
    words = shlex.split(line.replace("\\\n", " ").replace("--node-rank N", "--node-rank 1"))
    assert words[2:8] == [".venv/bin/matrix", "exec", "best", "python", "-m", "torch.distributed.run"]
    chosen = launcher.parse_args(words[8:])
    assert (chosen.nnodes, chosen.nproc_per_node, chosen.node_rank) == ("2", "2", 1)
    assert (chosen.module, chosen.training_script) == (True, "vpoc")
    command, *options = chosen.training_script_args
    assert (command, train_command.make_context("train", options).params["strategy"]) == ("train", "ddp")
