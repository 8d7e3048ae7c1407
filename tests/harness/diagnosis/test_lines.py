"""Tests of how logs of any shape are read in bounded memory."""

import io
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.diagnosis.explain_log import explain_files
from harness.diagnosis.lines import BLOCK, LONGEST, as_lines, read_lines
from harness.environments.executors.bounded_log import MAY_LACK_SOME

FAULT = "Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x2. Reason: Unknown."


def texts(content: bytes) -> list[tuple[int, str]]:
    return [(line.number, line.text) for line in read_lines(io.BytesIO(content), "x", lambda _: True)]


def test_lines_are_numbered_as_in_an_editor() -> None:
    assert texts(b"a\n\nb\r\nc") == [(1, "a"), (3, "b"), (4, "c")]


def test_what_a_progress_bar_wrote_over_is_parted() -> None:
    assert texts(b"10%\r20%\rdone\nnext\n") == [(1, "10%"), (1, "20%"), (1, "done"), (2, "next")]


def test_colours_are_left_out() -> None:
    assert texts(b"\x1b[1;31mRuntimeError\x1b[0m: \x1b]8;;x\x07HIP\x1b[K error") == [(1, "RuntimeError: HIP error")]


def test_the_lines_of_a_container_are_taken_out_of_their_json() -> None:
    kept = rb'{"log":"  File \"/x.py\", line 3\r\n","stream":"stderr","time":"2026-11-20T10:00:00Z"}'
    assert texts(kept) == [(1, '  File "/x.py", line 3')]
    assert texts(b'{"log":"\\n","stream":"stdout","time":"2026-11-20T10:00:00Z"}\nb') == [(2, "b")]
    assert texts(rb'{"log":"a\ud800","stream":"stdout"') == [(1, "a?")]
    escaped = rb'{"log":"\u001b[31mdied with \u003cSignals.SIGSEGV: 11\u003e\u001b[0m\n","stream":"stderr","time":"x"}'
    assert texts(escaped) == [(1, "died with <Signals.SIGSEGV: 11>")]


def test_a_traceback_in_a_string_is_parted_into_its_lines() -> None:
    told = rb'{"msg": "failed: Traceback (most recent call last):\n  File \"C:\\new\\x.py\", line 3\nKeyError: 1\n"}'
    first, frame, error, end = texts(told)
    assert first == (1, '{"msg": "failed: Traceback (most recent call last):')
    assert (frame, error, end) == ((1, r'  File "C:\\new\\x.py", line 3'), (1, "KeyError: 1"), (1, '"}'))


def test_bytes_that_are_no_text_are_tolerated() -> None:
    assert texts(b"\xff\xfeq"[1:] + b"\x00\x80\n")[0][1].endswith("\x00�")
    assert texts("Fehler: größer\n".encode("utf-16")) == [(1, "Fehler: größer")]
    split = "ü" * BLOCK
    assert "".join(text for _, text in texts(split.encode())).count("�") == 0


def test_blocks_without_anything_worth_are_passed_over() -> None:
    quiet = b"epoch 1\n" * BLOCK
    lines = list(read_lines(io.BytesIO(quiet + b"fault\n" + quiet), "x", lambda text: "fault" in text))
    found = next(line for line in lines if line.text == "fault")
    assert found.number == BLOCK + 1
    assert len(lines) < BLOCK


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\r\n\x1b", codec="utf-8"), max_size=30)))
def test_both_ways_of_reading_give_the_same_lines(lines: list[str]) -> None:
    content = "".join(f"{line}\n" for line in lines)
    if content.encode()[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return
    in_memory = [(line.number, line.text) for line in as_lines(lines, "x")]
    assert texts(content.encode()) == in_memory


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1000, LONGEST - 20, LONGEST, BLOCK - 20, BLOCK, 2 * BLOCK - 20, 3 * BLOCK - 20])
def test_a_message_within_a_very_long_line_is_found(place: int) -> None:
    content = b"x" * place + FAULT.encode() + b"y" * (5 * BLOCK)
    found = explain_files((io.BytesIO(b"first\n" + content + b"\nlast\n"), "x"))
    assert found.rule == "memory-access-fault"
    assert found.lines[0].line == 2
    assert "Memory access fault" in found.lines[0].text
    assert len(found.lines[0].text.strip(".")) <= 400


class _Large(io.RawIOBase):
    """A file whose content is generated while it is read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces = pieces

    def read(self, size: int = -1, /) -> bytes:
        return next(self.pieces, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", [b"epoch 1, loss 0.5, 312.2 samples/s\n" * 5000, b"x" * 150_000], ids=["lines", "a single line"]
)
def test_memory_stays_small_however_large_a_log_is(piece: bytes) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(80):
            yield piece
        yield f"\n{FAULT}\n".encode()

    tracemalloc.start()
    try:
        found = explain_files((_Large(pieces()), "x"))  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.rule == "memory-access-fault"
    assert peak < 8_000_000
    assert len(piece) * 80 > 10_000_000


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert explain_files((io.BytesIO(b"\xef\xbb\xbfKeyError: 'lr'\n"), "x")).class_ == "user-code"


def test_what_is_not_understood_shows_its_last_line() -> None:
    found = explain_files((io.BytesIO(b"epoch 1\nall is lost\n\n---\n"), "x"))
    assert (found.class_, [(line.line, line.text) for line in found.lines]) == ("unknown", [(2, "all is lost")])
    assert explain_files((io.BytesIO(b" \n"), "x")).cause == "the log is empty"
    assert explain_files((io.BytesIO(b""), "x")).cause == "the log is empty"


def test_the_note_on_a_restarted_engine_is_not_what_a_program_said_last() -> None:
    note = f"\n{MAY_LACK_SOME}\n".encode()
    found = explain_files((io.BytesIO(b"epoch 1\nall is lost\n" + note), "x"))
    assert [(line.line, line.text) for line in found.lines] == [(2, "all is lost")]
    assert explain_files((io.BytesIO(b"start\nepoch 3/200, step 17\n" + note), "x")).class_ == "stopped"
    assert explain_files((io.BytesIO(note), "x")).cause == "the log is empty"


def test_a_cut_line_says_so() -> None:
    text = explain_files((io.BytesIO(b"x" * 900), "x")).lines[0].text
    assert text == "x" * 400 + "..."


@pytest.mark.parametrize(
    "last",
    [
        " 43%|####      | 12/99 [00:10<01:00, 1.50it/s, loss=0.5]",
        "epoch 3/200, step 17",
        "2026-11-20 10:00:00,123 INFO trainer: saving",
        "train loss 0.693",
    ],
)
def test_a_log_that_stops_is_reported_with_what_to_do_next(last: str) -> None:
    found = explain_files((io.BytesIO(f"start\n{last}\n\n".encode()), "x"))
    assert (found.class_, found.rule) == ("stopped", "log-stops")
    assert [(line.line, line.text) for line in found.lines] == [(2, last.strip())]
    assert "journalctl -k -b -1 > kernel.log" in found.remedy
    assert "matrix explain --log" in found.remedy


@pytest.mark.parametrize(
    "before",
    [
        "FooError: nothing is known of it",
        "Traceback (most recent call last):",
        "HIP kernel errors might be asynchronously reported at some other API call",
        "the worker was killed",
        "2026-11-20 10:00:00,123 ERROR trainer: no",
    ],
)
def test_a_log_whose_end_tells_of_an_error_is_not_one_that_stops(before: str) -> None:
    found = explain_files((io.BytesIO(f"start\n{before}\nepoch 3, loss 0.5\n".encode()), "x"))
    assert found.class_ == "unknown"


def test_a_log_that_stops_after_a_failure_is_explained_by_the_failure() -> None:
    found = explain_files((io.BytesIO(f"{FAULT}\n{'epoch 3, loss 0.5' * 9}\n".encode()), "x"))
    assert found.rule == "memory-access-fault"


def test_what_the_kernel_says_explains_a_log_that_stops() -> None:
    kernel = b"[ 1.0] amdgpu 0000:03:00.0: amdgpu: GPU mode1 reset\n"
    found = explain_files((io.BytesIO(b"epoch 3, loss 0.5\n"), "x"), (io.BytesIO(kernel), "kernel.log"))
    assert found.class_ == "gpu-reset"


@pytest.mark.parametrize(
    "last",
    [
        "'(MaxRetryError(...), '(Request ID: fb)')' thrown while requesting HEAD https://example.org/config.json",
        "WARNING:http:Retrying in 1s [Retry 1/5].",
    ],
)
def test_a_log_that_ends_while_a_request_is_repeated(last: str) -> None:
    found = explain_files((io.BytesIO(f"start\n{last}\n".encode()), "x"))
    assert (found.class_, found.rule) == ("network", "log-ends-at-a-request")
    assert explain_files((io.BytesIO(f"{last}\nall done\n".encode()), "x")).class_ == "unknown"


def test_a_log_of_nothing_known_says_what_to_ask_next() -> None:
    log = b"epoch 1\nit went wrong\n"
    assert "--kernel-log" in explain_files((io.BytesIO(log), "x")).remedy
    assert "--kernel-log" not in explain_files((io.BytesIO(log), "x"), (io.BytesIO(b""), "kernel.log")).remedy


def test_where_the_kernels_log_says_nothing_either_it_is_not_asked_for_again() -> None:
    def remedy(kernel: tuple[io.BytesIO, str] | None) -> str:
        return explain_files((io.BytesIO(b"start\nepoch 3/200, step 17\n"), "x"), kernel).remedy

    assert "explain --log FILE --kernel-log" in remedy(None)
    said = remedy((io.BytesIO(b"[    1.0] usb 1-1: new device\n"), "kernel.log"))
    assert "--kernel-log" not in said
    assert "`matrix exec best vpoc probe`" in said
