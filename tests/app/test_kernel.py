"""Tests that the compiled kernel exists and was built from the current sources."""

import os
import platform
import sys

import pytest

from vpoc import kernel

FOR_US = (sys.platform, platform.machine()) == ("linux", "x86_64") and os.environ.get("VPOC_KERNEL") != "off"

pytestmark = pytest.mark.skipif(not FOR_US, reason="there is no compiled part for this platform, or it is off")


def test_it_is_there():
    assert kernel.library() is not None, (
        "the sources were changed: .venv/bin/python -m harness.environments.compiled_kernel"
    )


def test_a_library_of_other_sources_is_not_used(tmp_path, monkeypatch):
    here = kernel.__file__
    for file in (*kernel.SOURCES, kernel.file_name()):
        (tmp_path / file).write_bytes(kernel.Path(here).with_name(file).read_bytes())
    monkeypatch.setattr(kernel, "__file__", str(tmp_path / "__init__.py"))
    assert kernel.library.__wrapped__() is not None
    with monkeypatch.context() as off:
        off.setenv("VPOC_KERNEL", "off")
        assert kernel.library.__wrapped__() is None
    with (tmp_path / kernel.SOURCES[0]).open("a") as source:
        source.write("/* changed */\n")
    assert kernel.library.__wrapped__() is None
