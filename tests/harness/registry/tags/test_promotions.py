import fcntl
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.base.files import json_lines
from harness.evidence.records import Results
from harness.registry.tags.promotions import (
    PROMOTIONS,
    KnownGood,
    TagMove,
    append_move,
    from_lines,
    place_of,
    read_moves,
    standing_tags,
    to_line,
)

Evidence = Callable[..., KnownGood]


def moved(evidence: KnownGood, move: str = "promoted", reason: str | None = None) -> TagMove:
    return TagMove.model_validate({"move": move, "at": 1.0, "reason": reason, "evidence": evidence.model_dump()})


def test_a_tag_stands_until_it_is_demoted(make_evidence: Evidence) -> None:
    first, second = make_evidence(), make_evidence(image="sha256:" + "2" * 64)
    other = make_evidence(tag="known-good-gfx1100")
    assert standing_tags([]) == {}
    assert standing_tags([moved(first), moved(other), moved(second)]) == {first.tag: second, other.tag: other}
    assert standing_tags([moved(first), moved(other), moved(first, "demoted", "it hangs")]) == {other.tag: other}
    assert standing_tags([moved(first), moved(first, "demoted", "it hangs"), moved(second)]) == {first.tag: second}


def test_what_was_written_is_read_in_that_order(tmp_path: Path, make_evidence: Evidence) -> None:
    results = Results(tmp_path / "results")
    assert read_moves(results) == []
    moves = [moved(make_evidence(passes=n)) for n in (33, 34, 35)]
    for move in moves:
        append_move(results, move)
    assert read_moves(results) == moves


def test_a_move_that_somebody_keeps_others_from_is_abandoned(
    tmp_path: Path, make_evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "SHORT_LOCK_SECONDS", 0.0)
    with (tmp_path / f".{PROMOTIONS}.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process has locked it"):
            append_move(Results(tmp_path), moved(make_evidence()))


def test_a_line_that_a_crash_cut_short_was_never_written(tmp_path: Path, make_evidence: Evidence) -> None:
    results, move = Results(tmp_path), moved(make_evidence())
    whole = to_line(move)
    # One of the cuts leaves a line that only lacks its newline.
    for cut in (1, len(whole) // 2, len(whole) - 1):
        (tmp_path / PROMOTIONS).write_bytes(whole + whole[:cut])
        assert read_moves(results) == [move]
        append_move(results, move)
        assert read_moves(results) == [move, move]


def test_a_damaged_line_is_never_passed_over(tmp_path: Path, make_evidence: Evidence) -> None:
    line = to_line(moved(make_evidence()))
    (tmp_path / PROMOTIONS).write_bytes(line + b"{}\n" + line)
    with pytest.raises(UserError, match=r"promotions\.jsonl:2: is damaged"):
        read_moves(Results(tmp_path))


@pytest.mark.parametrize(
    "impossible",
    [
        {"promoted_at": -1e30}, {"expires_at": 1e30}, {"hours": "Infinity"}, {"mtbf_low": "NaN"}, {"low": 2.0},
        {"starts": 2**63}, {"failures": -1}, {"tag": "t" * 200_000}, {"repository": "r" * 200_000},
        {"tag": ""}, {"tag": "known-good-cpu\nmatrix: all is well"}, {"tag": "../../../v2/_catalog?n=1#"},
        {"cell": "a\rb"}, {"stack": "../../cpu"}, {"stack": "s" * 290},
    ],
)  # fmt: skip
def test_evidence_of_what_cannot_be_is_damaged(impossible: dict[str, Any], make_evidence: Evidence) -> None:
    """Anybody may run a registry; such numbers ended the commands that show them, or kept them busy for hours."""
    good = to_line(moved(make_evidence()))
    assert from_lines(good, "there")
    told = json.loads(good)
    told["evidence"] |= impossible
    with pytest.raises(UserError, match="there:1: is damaged"):
        from_lines(json.dumps(told).encode() + b"\n", "there")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, make_evidence: Evidence) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(UserError, match="cannot be written"):
        append_move(Results(tmp_path / "results"), moved(make_evidence()))


def test_a_file_of_a_later_layout_is_refused(make_evidence: Evidence) -> None:
    line = to_line(moved(make_evidence())).replace(b'"schema":2', b'"schema":3', 1)
    with pytest.raises(UserError, match="here:1: is damaged"):
        from_lines(line, "here")


def test_an_image_in_a_registry_is_asked_for_by_digest(make_evidence: Evidence) -> None:
    local = make_evidence()
    assert (local.reference, local.target) == (local.image, local.image)
    there = make_evidence(repository="ghcr.io/me/vpoc", digest="sha256:" + "d" * 64)
    assert there.reference == f"ghcr.io/me/vpoc@{there.digest}"
    assert there.target == there.digest


def test_where_an_image_was_pushed_is_known_whatever_became_of_its_tags(make_evidence: Evidence) -> None:
    digest, image = "sha256:" + "d" * 64, "sha256:" + "2" * 64
    pushed = make_evidence(repository="ghcr.io/me/vpoc", digest=digest)
    moves = [
        moved(pushed),
        moved(pushed, "demoted", "it hangs"),
        moved(make_evidence()),
        moved(make_evidence(image=image)),
    ]
    assert place_of(pushed.image, moves) == ("ghcr.io/me/vpoc", digest)
    assert place_of(image, moves) == (None, None)
    elsewhere = make_evidence(repository="quay.io/me/vpoc", digest=digest)
    assert place_of(pushed.image, [*moves, moved(elsewhere)]) == ("quay.io/me/vpoc", digest)


def test_of_a_damaged_history_of_millions_of_lines_one_is_read() -> None:
    content = b"\n" * 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="x:1: is damaged"):
            from_lines(content, "x")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("hostile", [{"firmware": {"g": [{}] * 32_000}}, {"environment": {"g": [[]] * 32_000}}, {}])
def test_a_history_that_takes_much_more_memory_than_text_is_refused(
    hostile: dict[str, Any], make_evidence: Evidence
) -> None:
    told = json.loads(to_line(moved(make_evidence())))
    told["evidence"] |= hostile
    line = json.dumps(told, separators=(",", ":")).encode() + b"\n"
    content = line * ((16 << 20) // len(line))
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="there: holds more than 5,000 promotions and demotions, or 524,288 values"):
            from_lines(content, "there")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


def test_a_history_of_some_megabytes_is_read(make_evidence: Evidence) -> None:
    gpu = {f"block {number}": "0x00000061" for number in range(12)}
    runs = tuple(f"20261129T085804Z-0d5d0e-train-{number}" for number in range(40))
    line = to_line(moved(make_evidence(firmware={"gfx1100": (gpu, gpu)}, run_ids=runs)))
    assert len(from_lines(line * 2000, "there")) == 2000
    assert len(line) * 2000 > 5 << 20
