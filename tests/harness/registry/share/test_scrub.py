import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.registry.share.scrub import Scrubber

SCRUBBER = Scrubber(
    places={"/home/alice": "<home>", "/home/alice/results/runs/r1": "<run>", "/mnt/My Disk/es.csv": "<data>"},
    words={"alice": "<user>", "Trainer-7": "<host>", "10.1.2.3": "<host>", "root": "<user>", "training": "<data>"},
)


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("wrote /home/alice/results/runs/r1/output/model.pt", "wrote <run>/output/model.pt"),
        ("see /home/alice/results/runs/r10/log.txt", "see <home>/results/runs/r10/log.txt"),
        ("see /home/alice.", "see <home>."),
        ("reading '/mnt/My Disk/es.csv': 7 rows", "reading '<data>': 7 rows"),
        ("/mnt/other/es.csv,/srv/x", "<path>,<path>"),
        ("PATH=/home/bob/bin:/usr/bin", "PATH=<path>:/usr/bin"),
        (
            "/usr/lib/x86_64-linux-gnu/libc.so.6, /opt/rocm-6.3/lib",
            "/usr/lib/x86_64-linux-gnu/libc.so.6, /opt/rocm-6.3/lib",
        ),
        ("/usr/home/alice/x", "/usr/home/<user>/x"),
        ("/users/alice", "<path>"),
        (
            'File "/srv/envs/cpu/lib/python3.11/site-packages/torch/nn/modules.py", line 3',
            'File "<path>/lib/python3.11/site-packages/torch/nn/modules.py", line 3',
        ),
        ('File "/srv/apps/0a1b/vpoc/training/loop.py"', 'File "<path>/vpoc/training/loop.py"'),
        ("see https://pytorch.org/docs/stable", "see https://pytorch.org/docs/stable"),
        ("1000 rows/s, 3/4", "1000 rows/s, 3/4"),
        ("TRAINER-7:412:412 [0] NCCL INFO", "<host>:412:412 [0] NCCL INFO"),
        ("alice_model of malice", "<user>_model of malice"),
        ("[10.1.2.3]:29500, not 110.1.2.3", "[<host>]:29500, not 110.1.2.3"),
        ("root is everywhere in training", "root is everywhere in training"),
        ("/home/alice/training/a.py", "<home>/training/a.py"),
        ("nothing of ours, é", "nothing of ours, é"),
        ("Alice, é", "<user>, é"),
        (
            "2026-11-21T20:43:08.123456+0000 somebody kernel: amdgpu 0000:03:00.0: GPU reset",
            "2026-11-21T20:43:08.123456+0000 <host> kernel: amdgpu 0000:03:00.0: GPU reset",
        ),
    ],
)
def test_names_and_places_are_taken_out_and_the_rest_stays(text: str, scrubbed: str) -> None:
    assert SCRUBBER.text(text) == scrubbed


def test_every_string_of_a_value_is_scrubbed_keys_too() -> None:
    value = {"Mounts": [{"Source": "/srv/x", "RW": True}], "/srv/y": None, "n": 1.5}
    assert SCRUBBER.value(value) == {"Mounts": [{"Source": "<path>", "RW": True}], "<path>": None, "n": 1.5}


words = st.sampled_from(
    ["/home/alice", "/srv/x", "alice", "trainer-7", "r1", "<run>", "/", " ", ":", "=", "b", ".", "~"]
)


@given(st.lists(words, max_size=12).map("".join))
def test_nothing_known_is_left_and_twice_is_once(text: str) -> None:
    scrubbed = SCRUBBER.text(text)
    assert SCRUBBER.text(scrubbed) == scrubbed
    assert re.search(r"(?<![^\W_])alice(?![^\W_])", scrubbed) is None


def test_a_scrubber_that_knows_no_names_only_takes_out_paths() -> None:
    assert Scrubber({}, {}).text("alice in /home/alice") == "alice in <path>"


@pytest.mark.slow
def test_a_log_full_of_the_runs_own_folder_takes_no_longer_than_it_is() -> None:
    """If the time grew with the square of the length, this log would take hours."""
    own = Scrubber(places={}, words={}).of_run({"/home/alice/runs/r1": "<run>"}, {})
    assert own.text("/home/alice/runs/r1/x\n" * 400_000) == "<run>/x\n" * 400_000
