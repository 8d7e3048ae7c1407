import json
import os
from itertools import pairwise
from pathlib import Path

import pytest

from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.gpu_sensors import MOST_LINES, GpuSensors, GpuSensorSample, SensorLog, read_sensors


def sample(second: int) -> GpuSensorSample:
    one = GpuSensors(
        gpu=0, busy_percent=99, power_watts=250.0, celsius={"edge": 60.0}, megahertz={"sclk": 2400.0}, used_bytes=second
    )
    return GpuSensorSample(wall=1e9 + second, monotonic=float(second), gpus=(one,))


def seconds(folder: RunFolder) -> list[float]:
    return [one.monotonic for one in read_sensors(folder)]


def test_samples_are_read_as_they_were_written_while_the_run_goes_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    log = SensorLog(folder)
    assert seconds(folder) == []
    for second in range(3):
        log.add(sample(second))
        assert list(read_sensors(folder)) == [sample(one) for one in range(second + 1)]
    log.close()


def test_of_a_long_run_evenly_spaced_samples_remain_up_to_the_last(tmp_path: Path) -> None:
    folder, most = RunFolder(tmp_path), 10
    log = SensorLog(folder, most)
    for second in range(200):
        log.add(sample(second))
        assert len(seconds(folder)) <= most
    log.close()
    kept = seconds(folder)
    assert kept == [float(second) for second in range(0, 200, 32)]


def test_what_is_damaged_is_passed_over_and_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    file = folder.named(RunFolder.GPU_SENSORS)
    file.write_text(f"{sample(1).model_dump_json(by_alias=True)}\n{{}}\n{sample(2).model_dump_json(by_alias=True)}\n{{")
    assert seconds(folder) == [1.0, 2.0]
    with file.open("a") as more:
        more.write(f"\n{sample(3).model_dump_json(by_alias=True).replace('250.0', 'NaN')}\n")
    assert seconds(folder) == [1.0, 2.0]
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert seconds(folder) == []


def test_something_else_of_that_name_is_neither_waited_for_nor_written_to(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    os.mkfifo(folder.named(RunFolder.GPU_SENSORS))
    log = SensorLog(folder)
    log.add(sample(1))
    log.close()
    assert seconds(folder) == []


def test_of_more_lines_than_are_written_only_the_first_are_looked_at(tmp_path: Path) -> None:
    line = sample(1).model_dump_json(by_alias=True)
    (tmp_path / "gpu-sensors.jsonl").write_text(f"{line}\n" + "\n" * (MOST_LINES - 1) + f"{line}\n", encoding="utf-8")
    assert len(seconds(RunFolder(tmp_path))) == 1


def test_of_many_samples_evenly_spaced_ones_are_read_up_to_the_last(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for count in (1, 100, 101, 777, 4096):
        lines = [sample(second).model_dump_json(by_alias=True) for second in range(count)]
        # A crash cut off the last line.
        folder.named(RunFolder.GPU_SENSORS).write_text("\n".join([*lines, lines[0][:20]]), encoding="utf-8")
        read = [one.monotonic for one in read_sensors(folder, 100)]
        assert read[-1] == count - 1
        assert min(count, 50) <= len(read) <= 100
        assert len({after - before for before, after in pairwise(read)}) <= 1


@pytest.mark.parametrize("more", ["celsius", "megahertz", "gpus"])
def test_more_than_any_driver_reports_is_damage(tmp_path: Path, more: str) -> None:
    """Of an imported run, a file of such lines took 300 MB."""
    told = json.loads(sample(1).model_dump_json(by_alias=True))
    folder = RunFolder(tmp_path)
    for count, read in ((32, 1), (65, 0)):
        if more == "gpus":
            told["gpus"] = [{**told["gpus"][0], "gpu": gpu} for gpu in range(count)]
        else:
            told["gpus"][0][more] = {f"name {number}": 1.0 for number in range(count)}
        folder.named(RunFolder.GPU_SENSORS).write_text(f"{json.dumps(told)}\n", encoding="utf-8")
        assert len(seconds(folder)) == read
