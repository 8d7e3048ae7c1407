import sys
import time
from pathlib import Path

import pytest

from harness.base.files.untrusted_tree import UntrustedTree
from harness.environments.executors.job import Job
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.app_reports.program_progress import ProgramProgress
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.gpu_sensors import GpuSensorSample, read_sensors
from harness.host.facts import GpuFacts
from harness.run.watch.confirm import WHILE_COMPUTING
from harness.run.watch.gpu_sensors import SensorWatch
from harness.run.watch.limits import LIMITS, Limits
from harness.run.watch.watch import Watch
from tests.harness.gpu_tree import TwoGpuHost, a_gpu, hanging_reads

SECONDS = 5.0


def kept_samples(folder: RunFolder, root: Path, *gpus: GpuFacts) -> list[GpuSensorSample]:
    """Return the samples that a watch keeps, which takes at least two looks."""
    watch = SensorWatch(folder, gpus, root)
    watch.look()
    until = time.monotonic() + SECONDS
    while not list(read_sensors(folder)) and time.monotonic() < until:
        watch.look()
        time.sleep(0.01)
    watch.close()
    return list(read_sensors(folder))


def test_power_temperature_clocks_and_memory_of_each_gpu_of_the_run_are_kept(tmp_path: Path) -> None:
    tree, folder = TwoGpuHost(tmp_path / "root"), RunFolder(tmp_path)
    tree.use_memory(1, 12 << 30)
    tree.write(1, "hwmon/hwmon0/power1_average", "281000000\n")
    before = time.time()
    first = kept_samples(folder, tree.root, a_gpu(0), a_gpu(1))[0]
    assert before - 1 < first.wall < time.time() + 1
    assert first.monotonic <= time.monotonic()
    idle, busy = first.gpus
    assert (idle.gpu, idle.power_watts, idle.celsius) == (0, 18.0, {"edge": 41.0})
    assert idle.megahertz == {"sclk": 42.0, "mclk": 96.0}
    assert (busy.gpu, busy.power_watts, busy.used_bytes, busy.busy_percent) == (1, 281.0, 12 << 30, 0)


def test_a_gpu_that_is_not_of_the_run_is_left_asleep(tmp_path: Path) -> None:
    tree = TwoGpuHost(tmp_path / "root")
    assert [one.gpu for one in kept_samples(RunFolder(tmp_path), tree.root, a_gpu(1))[0].gpus] == [1]


def test_a_driver_that_does_not_answer_keeps_nobody(tmp_path: Path) -> None:
    tree, folder = TwoGpuHost(tmp_path / "root"), RunFolder(tmp_path)
    watch = SensorWatch(folder, [a_gpu(0)], tree.root)
    with hanging_reads(tree.device(0).resolve() / "gpu_busy_percent"):
        for _ in range(3):
            watch.look()
        watch.close()
    assert list(read_sensors(folder)) == []


def test_where_the_driver_tells_nothing_there_is_no_file(tmp_path: Path) -> None:
    watch = SensorWatch(RunFolder(tmp_path), [a_gpu(0)], tmp_path / "root")
    for _ in range(3):
        watch.look()
        time.sleep(0.02)
    watch.close()
    assert not RunFolder(tmp_path).named(RunFolder.GPU_SENSORS).exists()


def test_a_run_is_sampled_while_it_is_watched(tmp_path: Path) -> None:
    tree, folder = TwoGpuHost(tmp_path / "root"), tmp_path / "run"
    folder.mkdir()
    sensors = SensorWatch(RunFolder(folder), [a_gpu(0)], tree.root)
    command = (sys.executable, "-c", "import time; time.sleep(0.3)")
    with Watch(RunFolder(folder), ProcessExecutor(), lambda _: None, None, sensors=sensors) as watch:
        watch.execute(Job(command, {}, folder, folder / "log.txt"), 60)
    assert [one.gpus[0].power_watts for one in read_sensors(RunFolder(folder))] == [18.0]


# Load in percent and power in microwatts of a GPU that computes, one that is idle, and one that waits in vain.
COMPUTES, IDLES, SPINS = ("60", "200000000"), ("0", "18000000"), ("100", "60000000")


@pytest.mark.slow
@pytest.mark.parametrize(("load_and_power", "times"), [(COMPUTES, WHILE_COMPUTING), (IDLES, 1), (SPINS, 1)])
def test_a_silent_program_has_more_time_while_its_gpu_computes(
    load_and_power: tuple[str, str], times: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.run.watch.watch.SAMPLE_SECONDS", 0.05)
    limit, tree, place = 1.2, TwoGpuHost(tmp_path / "root"), tmp_path / "run"
    (place / "work").mkdir(parents=True)
    tree.write(0, "gpu_busy_percent", load_and_power[0])
    tree.write(0, "hwmon/hwmon0/power1_average", load_and_power[1])
    tree.write(0, "hwmon/hwmon0/power1_cap", "300000000")
    folder = RunFolder(place)
    program = ProgramProgress(UntrustedTree(place), RunFolder.LOG, "stdout")
    limits = Limits.fixed(dict.fromkeys(LIMITS, limit / 2))
    with Watch(
        folder,
        ProcessExecutor(),
        lambda _: None,
        None,
        sensors=SensorWatch(folder, [a_gpu(0)], tree.root),
        program=program,
    ) as watch:
        watch.execute(Job((sys.executable, "-c", "import time; time.sleep(30)"), {}, place, folder.log), 60, limits)
    assert watch.stopped_by == "watchdog"
    (stall,) = watch.longest_stall.values()
    assert times * limit <= stall
    assert times == WHILE_COMPUTING or stall < WHILE_COMPUTING * limit
