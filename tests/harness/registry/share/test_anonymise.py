from collections.abc import Callable

import pytest

from harness.evidence.files.run_files import Intent
from harness.evidence.row import data_name
from harness.registry.share.anonymise import shared_intent
from harness.registry.share.scrub import Scrubber


@pytest.mark.parametrize(
    ("index", "shared"),
    [
        ("https://download.pytorch.org/whl/rocm6.3", "https://download.pytorch.org/whl/rocm6.3"),
        ("https://stable.repo.amd.com/rocm/whl-next", "https://stable.repo.amd.com/rocm/whl-next"),
        ("https://wheels.mycompany.example/rocm6.3", None),
    ],
)
def test_a_mirror_stays_at_home_and_a_public_index_is_reported(
    make_intent: Callable[..., Intent], index: str, shared: str | None
) -> None:
    assert shared_intent(make_intent(index=index), Scrubber({}, {})).index == shared


def test_runs_that_were_begun_together_are_known_as_such_abroad(make_intent: Callable[..., Intent]) -> None:
    first, second = make_intent(run_id="a", beside=("b",)), make_intent(run_id="b", beside=("a",))
    shared = [shared_intent(one, Scrubber({}, {})) for one in (first, second)]
    assert [one.beside for one in shared] == [(shared[1].run_id,), (shared[0].run_id,)]


@pytest.mark.parametrize(
    ("name", "shared", "called"),
    [
        (f"synthetic-26-7-{'a' * 12}.csv", f"synthetic-26-7-{'a' * 12}.csv", "synthetic"),
        ("merged.csv", "<data>", "<data>"),
        ("synthetic-acme.csv", "<data>", "<data>"),
    ],
)
def test_only_of_bars_that_the_harness_made_the_name_is_known_abroad(
    make_intent: Callable[..., Intent], name: str, shared: str, called: str
) -> None:
    intent = shared_intent(make_intent(data={"path": f"/home/me/{name}", "sha256": "a" * 64}), Scrubber({}, {}))
    assert (intent.data.path, data_name(intent)) == (shared, called)
