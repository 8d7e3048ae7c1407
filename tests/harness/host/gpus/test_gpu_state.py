from pathlib import Path

from harness.host.gpus.gpu_state import sample_gpus


def card(root: Path, number: int, address: str, **files: object) -> None:
    device = root / "sys/devices" / address
    (device / "hwmon/hwmon3").mkdir(parents=True)
    (root / f"sys/class/drm/card{number}").mkdir(parents=True)
    (root / f"sys/class/drm/card{number}/device").symlink_to(device)
    for name, content in {"vendor": "0x1002", **files}.items():
        folder = device / "hwmon/hwmon3" if name.startswith(("power", "temp")) else device
        (folder / name).write_text(f"{content}\n")


def test_memory_load_power_and_temperatures_are_read(tmp_path: Path) -> None:
    told = {"mem_info_vram_used": 21 << 30, "mem_info_vram_total": 20 << 30, "gpu_busy_percent": 99}
    heat = {"temp1_input": 54000, "temp1_label": "edge", "temp2_input": 71500, "temp2_label": "junction"}
    card(tmp_path, 1, "0000:0a:00.0", **told, **heat, power1_average=34_000_000, power1_cap=300_000_000)
    card(tmp_path, 0, "0000:03:00.0", power1_input=260_000_000, power1_cap=300_000_000, gpu_busy_percent=99)
    (tmp_path / "sys/class/drm/card0-DP-1").mkdir()
    card(tmp_path, 2, "0000:01:00.0", vendor="0x10de")
    busy, hung = sample_gpus(tmp_path)
    assert (hung.card, hung.used_bytes, hung.busy_percent, hung.power_watts) == ("0000:0a:00.0", 21 << 30, 99, 34.0)
    assert hung.celsius == {"edge": 54.0, "junction": 71.5}
    assert (busy.power_watts, busy.total_bytes) == (260.0, None)


def test_little_power_at_full_load_is_noted(tmp_path: Path) -> None:
    card(tmp_path, 0, "0000:03:00.0", gpu_busy_percent=99, power1_average=34_000_000, power1_cap=300_000_000)
    card(tmp_path, 1, "0000:04:00.0", gpu_busy_percent=99, power1_average=280_000_000, power1_cap=300_000_000)
    card(tmp_path, 2, "0000:05:00.0", gpu_busy_percent=3, power1_average=12_000_000, power1_cap=300_000_000)
    card(tmp_path, 3, "0000:06:00.0", gpu_busy_percent=99)
    notes = [sample.idle_at_full_load for sample in sample_gpus(tmp_path)]
    assert notes == ["GPU 0000:03:00.0 is 99 % busy at 34 W of 300 W", None, None, None]


def test_a_host_without_a_gpu_has_none(tmp_path: Path) -> None:
    assert sample_gpus(tmp_path) == ()
