"""A user may start an engine where the kernel permits it, whatever the user is called."""

from pathlib import Path

import pytest

from harness.faults.own_engine import NET_ADMIN, SYS_ADMIN, has_capabilities


@pytest.mark.parametrize(
    ("effective", "net", "both"),
    [("000001ffffffffff", True, True), ("0000000000001000", True, False), ("0000000000000000", False, False)],
)
def test_capabilities_are_read_from_the_kernels_words(effective: str, net: bool, both: bool, tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    text = f"Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t{effective}\nCapBnd:\t000001ffffffffff\n"
    (tmp_path / "proc/self/status").write_text(text, encoding="utf-8")
    assert has_capabilities(NET_ADMIN, root=tmp_path) is net
    assert has_capabilities(NET_ADMIN, SYS_ADMIN, root=tmp_path) is both


def test_without_the_kernels_words_there_are_none(tmp_path: Path) -> None:
    assert not has_capabilities(SYS_ADMIN, root=tmp_path)
