from harness.evidence.gpus.gpu_sensors import GpuSensors, GpuSensorSample
from harness.report.of_runs.gpu_curves import gpu_curves


def sample(second: float, *gpus: int, power: float | None = 200.04) -> GpuSensorSample:
    told = (
        GpuSensors(
            gpu=gpu,
            busy_percent=99,
            power_watts=power,
            celsius={"edge": 60.0} | ({"junction": 80.0} if second else {}),
            megahertz={"sclk": 2400.0 + gpu},
            used_bytes=12_000_000_000,
        )
        for gpu in gpus
    )
    return GpuSensorSample(wall=1e9 + second, monotonic=second, gpus=tuple(told))


def test_each_gpu_has_its_curves_in_seconds_since_the_start() -> None:
    zero, one = gpu_curves([sample(0, 0, 1), sample(1, 0, 1, power=None), sample(2, 0)], 1e9 - 5)
    assert (zero.gpu, zero.seconds, zero.power_watts) == (0, (5.0, 6.0, 7.0), (200.0, None, 200.0))
    assert zero.celsius == {"edge": (60.0, 60.0, 60.0), "junction": (None, 80.0, 80.0)}
    assert (one.gpu, one.seconds, one.used_mb) == (1, (5.0, 6.0), (12000.0, 12000.0))
    assert one.megahertz == {"sclk": (2401.0, 2401.0)}


def test_without_samples_there_is_no_curve() -> None:
    assert gpu_curves([], 1e9) == ()


def test_a_name_that_no_driver_gives_a_sensor_is_not_shown() -> None:
    one = sample(0, 0).gpus[0].model_copy(update={"celsius": {"<a href='https://x'>edge</a>": 1.0, "mem": 2.0}})
    (curve,) = gpu_curves([GpuSensorSample(wall=1e9, monotonic=0, gpus=(one,))], 1e9)
    assert curve.celsius == {"mem": (2.0,)}
