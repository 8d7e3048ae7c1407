"""What the dispatcher makes of the answers of Slurm's programs, which are scripts here."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest
from pydantic import ValidationError

from harness.base.errors import UserError
from harness.campaign.bench.dispatch import JobSeen, RunRequest
from harness.evidence.files.run_files import Intent, Scheduled
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.matrix.clusters import Cluster
from harness.slurm.dispatcher import SlurmDispatcher
from harness.slurm.open_dispatchers import open_dispatchers
from tests.harness.gpu_tree import a_gpu

Program = Callable[[str, str], Path]
ON_N1 = Scheduled(scheduler="slurm", job="1", node="n1")


@pytest.fixture
def dispatcher(tmp_path: Path, host: HostFacts) -> SlurmDispatcher:
    results = Results(tmp_path / "results")
    return SlurmDispatcher(results, ("matrix",), Cluster(), host, ("n1", "n2"), None)


def sinfo(program: Program, **nodes: str) -> None:
    lines = (
        f"gpus*|{name}|{said.partition(' ')[0]}|infinite||{said.partition(' ')[2]}" for name, said in nodes.items()
    )
    program("sinfo", "\n".join(f"echo '{line}'" for line in lines))


def squeue(program: Program, *lines: str) -> None:
    program("squeue", "\n".join(f"echo '{line}'" for line in lines) or "true")


def test_a_node_is_asked_for_a_record_once_at_a_time_and_only_where_it_may_be(
    dispatcher: SlurmDispatcher, program: Program, make_intent: Callable[..., Intent]
) -> None:
    intent, over = make_intent("r1", scheduled=ON_N1), JobSeen("over", "n1", "cancelled")
    sinfo(program, n1="idle none", n2="idle none")
    squeue(program)
    program("sbatch", "echo 7")
    assert dispatcher.request_record(intent, over, asks=False) == "left-none"
    assert dispatcher.request_record(intent, over, asks=True) == "asked"
    squeue(program, "7|PENDING||None|r1.close")
    dispatcher.look()
    assert dispatcher.request_record(intent, over, asks=True) == "under-way"
    squeue(program, "7|FAILED|n1|NonZeroExitCode|r1.close")
    dispatcher.look()
    assert dispatcher.request_record(intent, over, asks=False) == "left-none"
    sinfo(program, n1="down* Not responding", n2="idle none")
    assert dispatcher.request_record(intent, over, asks=True) == "gone"


def test_what_is_submitted_is_nowhere_that_others_may_write(
    dispatcher: SlurmDispatcher,
    program: Program,
    make_intent: Callable[..., Intent],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sinfo(program, n1="idle none")
    asked = f'/usr/bin/stat -c %a "${{2%/*}}" >{tmp_path}/mode; /bin/cat "$2" >{tmp_path}/script; echo 7'
    program("sbatch", asked)
    assert dispatcher.request_record(make_intent("r1", scheduled=ON_N1), None, asks=True) == "asked"
    assert (tmp_path / "mode").read_text() == "700\n"
    assert (tmp_path / "script").read_text() == (tmp_path / "results" / "slurm" / "r1.close.sh").read_text()
    (tmp_path / "results" / "slurm").rename(tmp_path / "elsewhere")
    (tmp_path / "results" / "slurm").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"results/slurm: is a link, .*; remove it"):
        dispatcher.request_record(make_intent("r1", scheduled=ON_N1), None, asks=True)
    (tmp_path / "results" / "slurm").unlink()
    monkeypatch.setattr("tempfile.TemporaryDirectory", lambda: nullcontext("/proc"))
    with pytest.raises(UserError, match=r"^/proc/r1\.close\.sh: cannot be written"):
        dispatcher.request_record(make_intent("r1", scheduled=ON_N1), None, asks=True)


def test_a_node_that_slurm_drained_because_of_a_process_is_not_taken_to_be_down(
    dispatcher: SlurmDispatcher, program: Program, make_intent: Callable[..., Intent]
) -> None:
    intent = make_intent("r1", scheduled=ON_N1)
    for reason, closing in (("Kill task failed", "unkillable"), ("Epilog error", "unkillable"), ("a fan", "gone")):
        sinfo(program, n1=f"drain {reason}", n2="idle none")
        assert dispatcher.request_record(intent, None, asks=True) == closing


def test_the_last_node_stays_in_use_until_three_runs_in_a_row_were_not_begun(
    dispatcher: SlurmDispatcher, make_intent: Callable[..., Intent]
) -> None:
    dispatcher.nodes = ("n1",)
    intent = make_intent("r1", scheduled=ON_N1)
    assert [dispatcher.avoid(intent, []) for _ in range(2)] == [True, True]
    dispatcher.note_host(intent)
    assert [dispatcher.avoid(intent, []) for _ in range(3)] == [True, True, False]


def test_a_node_that_became_another_kind_gets_no_more_runs(
    dispatcher: SlurmDispatcher, make_intent: Callable[..., Intent], host: HostFacts
) -> None:
    dispatcher.note_host(make_intent("r1", scheduled=ON_N1))
    assert dispatcher.nodes_at_work == 2
    dispatcher.note_host(make_intent("r2", scheduled=ON_N1, host=host.model_copy(update={"kind": "another"})))
    assert dispatcher.nodes_at_work == 1


def test_a_job_asks_for_the_gpus_that_train(
    dispatcher: SlurmDispatcher, program: Program, matrix: Matrix, tmp_path: Path
) -> None:
    """The processor's own GPU, which the driver shows as well, is no GPU of Slurm's: the job would be refused."""
    own = a_gpu(1).model_copy(update={"index": 2, "gfx": "gfx1036"})
    dispatcher.kind = dispatcher.kind.model_copy(update={"gpus": (a_gpu(0), a_gpu(1), own)})
    cell = matrix.cells["rocm6.3-torch2.9.1-plain"]
    request = RunRequest(
        run_id="r1",
        campaign=None,
        repeat=1,
        gpus=(0,),
        stack=cell.stack,
        preset=cell.preset,
        workload=matrix.workloads["quick"],
        executor="process",
    )
    program("sbatch", f"grep '^#SBATCH --gres=' \"$2\" >{tmp_path}/asked; echo 7")
    (tmp_path / "bin" / "grep").symlink_to("/bin/grep")
    for gres, asked in ((None, "gpu:2"), ("gpu:gfx1100:3", "gpu:gfx1100:3")):
        dispatcher.cluster = Cluster(gres=gres)
        assert dispatcher.submit(request)
        assert (tmp_path / "asked").read_text() == f"#SBATCH --gres={asked}\n"


def test_a_node_that_a_run_names_is_a_name() -> None:
    """Into the script of the next job goes which nodes are to be avoided."""
    for odd in ("n1\nid", "../n1", "", "-n1", "n1\n"):
        with pytest.raises(ValidationError):
            Scheduled(scheduler="slurm", job="1", node=odd)


def test_nodes_that_take_no_jobs_are_named_with_why_but_not_those_that_are_avoided(
    dispatcher: SlurmDispatcher, program: Program, make_intent: Callable[..., Intent]
) -> None:
    sinfo(program, n1="drain Prolog error", n2="alloc none", n3="down none")
    assert dispatcher.unavailable_nodes() == {"n1": "drain (Prolog error)"}
    sinfo(program, n2="idle none")
    assert dispatcher.unavailable_nodes() == {"n1": "not in the partition"}
    assert dispatcher.avoid(make_intent("r1", scheduled=ON_N1), [])
    assert dispatcher.unavailable_nodes() == {}
    program("sinfo", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert dispatcher.unavailable_nodes() is None


def test_jobs_that_wait_are_kept_from_a_node_that_begins_no_runs(
    dispatcher: SlurmDispatcher, program: Program, make_intent: Callable[..., Intent], tmp_path: Path
) -> None:
    squeue(program, "7|PENDING||None|r2", "8|PENDING||None|r3", "9|PENDING||None|others")
    dispatcher.look()
    program("scontrol", f'echo "$*" >>{tmp_path}/asked; exit 1')
    for _ in range(2):
        assert dispatcher.avoid(make_intent("r1", scheduled=ON_N1), ["r2", "r3", "r4"])
    assert (tmp_path / "asked").read_text() == "update JobId=7,8 ExcNodeList=n1\n"


def test_why_a_job_waits_is_said_where_that_is_not_for_others_alone(
    dispatcher: SlurmDispatcher, program: Program
) -> None:
    reasons = {"r1": "Priority", "r2": "ReqNodeNotAvail, UnavailableNodes:n1", "r3": "PartitionTimeLimit"}
    squeue(program, *(f"{number}|PENDING||{why}|{name}" for number, (name, why) in enumerate(reasons.items())))
    seen: Mapping[str, JobSeen] = dispatcher.look() or {}
    assert (seen["r1"].why, seen["r2"].why) == (None, "ReqNodeNotAvail, UnavailableNodes:n1")
    assert [name for name, one in seen.items() if one.never] == ["r3"]


def test_where_no_node_takes_jobs_the_command_says_why(tmp_path: Path, program: Program) -> None:
    sinfo(program, n1="drain Prolog error", n2="down* Not responding")
    said = r"n1 drain \(Prolog error\), n2 down\* \(Not responding\); when one does, the same command continues"
    with pytest.raises(UserError, match=said):
        open_dispatchers(Results(tmp_path), Cluster(), Path("/"), print)
