"""Tests that every strategy trains the model that one device trains, and that one rank's fault ends all of them."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import forked
import pytest
import torch

from vpoc.cli import run
from vpoc.models.by_name import fresh_network
from vpoc.training.strategies.model_parallel import stages

NEWER = tuple(int(part) for part in torch.__version__.split(".")[:2])
needs_fsdp = pytest.mark.skipif(NEWER < (2, 6), reason="torch before 2.6 has no fully_shard")
RANKED = ["ddp", "averaging", pytest.param("fsdp", marks=needs_fsdp)]


@pytest.fixture(scope="session")
def features(merged, tmp_path_factory):
    """Return a file of features of the small data file, so that a rank only has to train."""
    path = tmp_path_factory.mktemp("strategies") / "f.parquet"
    as_ranks(1, "features", "--data", merged, "--output", path, "--lookback", 20)
    return path


def command(*words):
    return [sys.executable, "-m", "vpoc", *map(str, words)]


def vpoc(*words, status=0):
    """Run the command in a process of its own."""
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def as_ranks(world, *words, statuses=None):
    """Run the command as `world` ranks without the launcher, forked from a process that has imported torch already.

    Return their output. Their exit statuses must be 0, or `statuses`.
    """
    with tempfile.TemporaryDirectory() as folder:
        common = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo"}
        common |= {"VPOC_RENDEZVOUS": f"{folder}/meet", "VPOC_EXCHANGE": folder}
        started = []
        for rank in range(world):
            variables = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if world > 1 else {}
            started.append(forked.start([*words], Path(folder, "log"), variables))
        for process in started:
            process.join(240)
        said = Path(folder, "log").read_text()
        assert [process.exitcode for process in started] == (statuses or [0] * world), said
    return said


@pytest.fixture
def train(merged, features, tmp_path):
    """Return a function that makes the words of `vpoc train` into a folder of the given name; options are added."""

    def words(name, *more):
        small = ["--lookback", 20, "--loader-workers", 0, "--hidden-layers", "8,4", "--batch-size", 8, "--epochs", 1]
        small += ["--keep", "last", "--patience", 0]
        place = ["--output", tmp_path / name, "--name", "m", "--run-dir", tmp_path / name / "run"]
        target = ["--target", "prior_vpoc_touched"]
        return ["train", "--data", merged, "--features", features, *small, *target, *place, *more]

    return words


def result(tmp_path, name):
    return json.loads((tmp_path / name / "run" / "result.json").read_text())


def weights(tmp_path, name):
    return torch.load(tmp_path / name / "m.pt", weights_only=True)["state_dict"]


@pytest.mark.parametrize("strategy", RANKED)
@pytest.mark.parametrize("model", ["mlp", "attention-small"])
def test_two_ranks_are_one_device_with_two_micro_batches(train, tmp_path, strategy, model):
    """Bitwise, as two gradients sum in one order only. The last batch is short; attention's has unequal shares."""
    more = ["--model", model, "--batch-size", 18]
    as_ranks(1, *train("alone", *more, "--micro-batch-size", 9))
    as_ranks(2, *train("ranks", *more, "--strategy", strategy))
    alone, ranks = result(tmp_path, "alone"), result(tmp_path, "ranks")
    assert alone["samples"]["train"] % 18 == {"mlp": 12, "attention-small": 17}[model]
    assert ranks["rank_weights_sha256"] == alone["rank_weights_sha256"] * 2
    assert ranks["epoch_losses"] == alone["epoch_losses"]
    assert [step["loss"] for step in ranks["first_steps"]] == [step["loss"] for step in alone["first_steps"]]
    assert (ranks["world_size"], [device["rank"] for device in ranks["devices"]]) == (2, [0, 1])
    assert (ranks["strategy"], alone["world_size"]) == (strategy, 1)
    assert (tmp_path / "ranks" / "run" / "progress-1.jsonl").exists()


@needs_fsdp
def test_ranks_with_unequal_shares_work_in_equally_many_parts(train, tmp_path):
    """A batch of 31 gives one rank 16 samples in four parts; the other rank's 15 would fit into three."""
    more = ["--batch-size", 31, "--micro-batch-size", 5]
    as_ranks(1, *train("alone", *more))
    as_ranks(2, *train("ranks", *more, "--strategy", "fsdp"))
    alone, ranks = weights(tmp_path, "alone"), weights(tmp_path, "ranks")
    for name, tensor in ranks.items():
        torch.testing.assert_close(tensor, alone[name], rtol=0, atol=1e-4 * float(tensor.abs().max()))


def test_four_ranks_of_ddp_resume_to_bitwise_identical_weights(train, tmp_path):
    """In its first pass DDP sums in another order than afterwards; this shows only with more than two ranks."""
    more = ["--model", "attention-small", "--strategy", "ddp"]
    as_ranks(4, *train("whole", *more, "--epochs", 2))
    as_ranks(4, *train("cut", *more, "--epochs", 1))
    as_ranks(4, *train("cut", *more, "--epochs", 2, "--resume"))
    assert result(tmp_path, "cut")["rank_weights_sha256"] == result(tmp_path, "whole")["rank_weights_sha256"]


@pytest.mark.parametrize("strategy", RANKED)
def test_four_ranks_differ_in_rounding_only(train, tmp_path, strategy):
    """The tolerance is 1e-4 of the largest weight: four ranks sum in another order, and Adam divides by square roots.

    The last batch has fewer samples than ranks.
    """
    more = ["--batch-size", 27]
    as_ranks(1, *train("alone", *more))
    as_ranks(4, *train("ranks", *more, "--strategy", strategy))
    assert result(tmp_path, "alone")["samples"]["train"] % 27 == 3
    assert len(set(result(tmp_path, "ranks")["rank_weights_sha256"])) == 1
    expected = weights(tmp_path, "alone")
    for name, tensor in weights(tmp_path, "ranks").items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-4 * float(tensor.abs().max()))


def test_averaging_of_four_ranks_has_the_order_of_micro_batches(train, tmp_path):
    as_ranks(1, *train("alone", "--micro-batch-size", 2))
    as_ranks(4, *train("ranks", "--strategy", "averaging"))
    assert len(set(result(tmp_path, "ranks")["rank_weights_sha256"])) == 1
    # The short last batch is not compared, because ranks share it in other parts than one device cuts it into.
    alone, ranks = result(tmp_path, "alone")["first_steps"], result(tmp_path, "ranks")["first_steps"]
    assert ranks[:10] == alone[:10]


def test_layers_on_several_devices_change_nothing(train, tmp_path):
    as_ranks(1, *train("alone", "--model", "attention-small"))
    as_ranks(1, *train("parts", "--model", "attention-small", "--strategy", "model-parallel", "--devices", 4))
    assert result(tmp_path, "parts")["rank_weights_sha256"] == result(tmp_path, "alone")["rank_weights_sha256"]


def test_layers_are_spread_by_their_parameters():
    attention = fresh_network("attention", 54, (), 7)
    assert stages(attention, 1) == [0] * 7
    assert stages(attention, 2) == [0, 0, 0, 0, 1, 1, 1]
    assert stages(attention, 4) == [0, 0, 1, 1, 2, 3, 3]
    assert stages(fresh_network("mlp", 54, (32, 16), 7), 2) == [0, 1, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "signum", "status"),
    [
        pytest.param("ddp", signal.SIGKILL, -9, marks=pytest.mark.long),
        ("averaging", signal.SIGTERM, 143),
        pytest.param("fsdp", signal.SIGINT, 130, marks=[needs_fsdp, pytest.mark.long]),
    ],
)
def test_ranks_that_are_interrupted_resume_to_bitwise_identical_weights(train, tmp_path, strategy, signum, status):
    """The launcher gets the signal; after a signal that can be caught, all ranks end after the same step."""
    more = ["--strategy", strategy, "--epochs", 3, "--micro-batch-size", 3]
    words = train("cut", *more, "--devices", 2, "--checkpoint-every", 0)
    process = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    kept = (tmp_path / "cut").glob
    wait_for(lambda: any(path.name.split(".")[0] >= "step-000000003" for path in kept("m_checkpoints/step-*")))
    process.send_signal(signum)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == status, said
    wait_for(lambda: not orphans(tmp_path))
    as_ranks(2, *train("cut", *more, "--resume"))
    as_ranks(2, *train("whole", *more))
    whole, cut = result(tmp_path, "whole"), result(tmp_path, "cut")
    assert cut["rank_weights_sha256"] == whole["rank_weights_sha256"]
    assert cut["first_steps"] == whole["first_steps"]
    assert len(cut["resumed_at"]) == 1


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def orphans(folder):
    """Return the processes that have `folder` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(folder) in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("strategy", "fault", "statuses", "said"),
    [
        ("averaging", "kill@3/1", [1, -9], "rank 1 has ended"),
        ("ddp", "nan@3/1", [4, 4], "step 3: the loss is nan"),
        ("ddp", "flip-peer-buffer@3/1", [5, 5], "weights of rank 1"),
        ("averaging", "flip-peer-buffer@3/1", [1, 1], "the shared memory of rank 1 does not hold what was put there"),
    ],
)
def test_other_ranks_see_the_fault_of_one(train, tmp_path, strategy, fault, statuses, said):
    assert said in as_ranks(2, *train("x", "--strategy", strategy, "--inject-fault", fault), statuses=statuses)
    assert not (tmp_path / "x" / "m.pt").exists()


PATIENCE_OF_A_SECOND = """
import functools, sys
from vpoc.commands import train
from vpoc.cli import main
train.launch = functools.partial(train.launch, grace_s=1.0)
main()
"""


@pytest.mark.long
def test_a_rank_that_hangs_is_ended(train, tmp_path):
    words = train("x", "--strategy", "averaging", "--devices", 2, "--inject-fault", "sleep@3/1", "--rank-timeout", 3)
    launcher = [sys.executable, "-c", PATIENCE_OF_A_SECOND, *map(str, words)]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode not in (0, None)
    assert not orphans(tmp_path)
    last = [json.loads(path.read_text().splitlines()[-1]) for path in sorted((tmp_path / "x/run").glob("progress-*"))]
    assert [line["rank"] for line in last] == [0, 1]


@pytest.mark.parametrize("strategy", ["single", "model-parallel"])
def test_one_process_is_not_one_of_several(train, capsys, monkeypatch, strategy):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert run([*map(str, train("x", "--strategy", strategy))]) == 2
    assert "is one process, the environment says RANK=0 of WORLD_SIZE=2" in capsys.readouterr().err


def test_a_rank_with_a_flipped_bit_leaves_no_checkpoint_and_its_fault_stays_known(train, tmp_path):
    more = ["--strategy", "ddp", "--checkpoint-every", 0, "--inject-fault", "flip-peer-buffer@3/0"]
    assert "weights of rank 1" in as_ranks(2, *train("x", *more), statuses=[5, 5])
    steps = sorted(path.name.split(".")[0] for path in (tmp_path / "x" / "m_checkpoints").iterdir())
    assert steps == ["step-000000001", "step-000000002"]
    as_ranks(2, *train("x", "--strategy", "ddp", "--resume"))
    assert result(tmp_path, "x")["injected_fault"] == "flip-peer-buffer@3/0"


def torchrun(*words):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    return subprocess.run(
        [*command, "--master-port", port, *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    )


@pytest.mark.long
def test_torchrun_starts_the_ranks_as_well(train, tmp_path):
    # With micro-batches of 9, the last batch has as many parts on one device as there are ranks.
    as_ranks(1, *train("alone", "--batch-size", 18, "--micro-batch-size", 9))
    words = ["-m", "vpoc", *map(str, train("ranks", "--batch-size", 18, "--strategy", "ddp"))]
    # Another program may take the port before the ranks do, so three attempts.
    for _ in range(3):
        done = torchrun(*words)
        if "address already in use" not in done.stderr.lower():
            break
    assert done.returncode == 0, done.stderr
    assert result(tmp_path, "ranks")["rank_weights_sha256"] == result(tmp_path, "alone")["rank_weights_sha256"] * 2


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        (["--strategy", "dp"], 2, "needs two GPUs and would silently be `single` on a CPU"),
        (["--devices", "2"], 2, "--strategy single uses one device"),
        (["--backend", "gloo"], 2, "--backend is for ddp and fsdp"),
        (["--strategy", "ddp", "--backend", "nccl"], 2, "--backend nccl works on GPUs only"),
        (["--strategy", "ddp", "--backend", "mpi"], 2, "was built without it; choose another --backend"),
        (["--strategy", "ddp", "--devices", "2"], 2, "1 ranks were started on this host"),
        (["--strategy", "model-parallel", "--devices", "4"], 2, "the model's layers fill only"),
        (["--model", "mlp", "--model", "mlp"], 2, "the same one is given twice"),
        (["--inject-fault", "nan@3/1"], 2, "there is no such rank, or no other one, among 1"),
        (["--inject-fault", "flip-peer-buffer@3"], 2, "there is no such rank, or no other one, among 1"),
        (["--inject-fault", "nan@12"], 2, "there are only 11 steps"),
        (["--sdpa", "efficient"], 2, "there is no such kernel on a CPU"),
        (["--strategy", "single", "--mixed-precision-dtype", "float16"], 2, "give both"),
    ],
)
def test_what_cannot_be_is_one_line(train, capsys, monkeypatch, more, status, said):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    assert run([*map(str, train("x", *more))]) == status
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
