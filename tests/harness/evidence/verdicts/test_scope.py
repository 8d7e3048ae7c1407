from collections.abc import Callable

from harness.evidence.files.run_files import Intent
from harness.evidence.verdicts.scope import ScopeParts, parts_of, scope_of
from harness.host.facts import HostFacts

Make = Callable[..., Intent]


def test_of_a_cpu(make_intent: Make) -> None:
    assert scope_of(make_intent()) == "cpu"
    assert scope_of(make_intent(options={"strategy": "ddp", "devices": 2})) == "cpu-ddp-2"


def test_of_gpus(make_intent: Make, dual_host: HostFacts) -> None:
    assert scope_of(make_intent(host=dual_host, device="cuda", gpus=(1,))) == "gfx1100"
    both = make_intent(host=dual_host, device="cuda", gpus=(0, 1), options={"strategy": "ddp", "devices": 2})
    assert scope_of(both) == "gfx1100-ddp-2"


def test_of_gpus_that_the_driver_does_not_tell_of(make_intent: Make) -> None:
    assert scope_of(make_intent(device="cuda")) == "gpu"


def test_a_device_that_is_not_used_is_no_part_of_it(make_intent: Make, dual_host: HostFacts) -> None:
    other = dual_host.gpus[1].model_copy(update={"gfx": "gfx1036"})
    mixed = dual_host.model_copy(update={"gpus": (dual_host.gpus[0], other)})
    assert scope_of(make_intent(host=mixed, device="cuda", gpus=(0,))) == "gfx1100"
    assert scope_of(make_intent(host=mixed, device="cuda", gpus=(0, 1))) == "gfx1036-gfx1100"


def test_a_count_of_more_digits_than_any_is_no_count() -> None:
    # The scope of an imported run is whatever its options say.
    assert parts_of("cpu-ddp-" + "9" * 5000) == ScopeParts("cpu-ddp-" + "9" * 5000, 1, "single", simulated=False)
