from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from harness.base.files.yaml_lines import read_yaml
from harness.matrix.new_wheels import OLD_AFTER_DAYS, age_of_table, new_pairs
from harness.matrix.stacks import Stack
from harness.matrix.wheels import Release, load_wheels

PAGE = """<!DOCTYPE html><html><body>
<a href="/whl/rocm7.2/torch-2.14.0%2Brocm7.2-cp311-cp311-manylinux_2_28_x86_64.whl#sha256=0">known</a><br/>
<a href="/whl/rocm7.14/torch-2.99.0%2Brocm7.14-cp312-cp312-manylinux_2_28_x86_64.whl#sha256=1">b</a><br/>
<a href="/whl/rocm7.14/torch-2.99.0%2Brocm7.14-cp311-cp311-manylinux_2_28_x86_64.whl">a</a><br/>
<a href="/whl/rocm7.14/torch-2.99.0%2Brocm7.14-cp310-cp310-manylinux_2_28_x86_64.whl">too old a Python</a><br/>
<a href="/whl/rocm7.14/torch-2.99.0%2Brocm7.14-cp313-cp313t-manylinux_2_28_x86_64.whl">free-threaded</a><br/>
<a href="/whl/cu130/torch-2.99.0%2Bcu130-cp311-cp311-manylinux_2_28_x86_64.whl">another vendor</a><br/>
<a href="/whl/rocm10.0/torch-2.16.0.dev20261101%2Brocm10.0-cp311-cp311-manylinux_2_28_x86_64.whl">nightly</a><br/>
<a href="torch-2.14.0+rocm10.2.0-cp311-cp311-win_amd64.whl">Windows</a><br/>
<a href="torch-2.14.0+rocm10.2.0-cp314-cp314-linux_x86_64.whl">AMD's</a><br/>
<a href="torch-2.10.0%2Brocm7.2.4.lw.git3d3aa833-cp312-cp312-linux_x86_64.whl">of a folder</a><br/>
</body></html>"""


def test_what_a_listing_has_and_the_table_lacks() -> None:
    pairs = [(pair.source, pair.torch, pair.rocm, pair.pythons) for pair in new_pairs(PAGE)]
    assert pairs == [
        ("amd-rel", "2.10.0", "7.2.4", ("3.12",)),
        ("amd-10", "2.14.0", "10.2.0", ("3.14",)),
        ("pytorch-packages", "2.99.0", "7.14", ("3.11", "3.12")),
    ]
    assert new_pairs("nothing of it") == []


def test_the_lines_are_what_the_files_take(tmp_path: Path) -> None:
    (tmp_path / "lines.yaml").write_text(
        "releases:\n"
        + "\n".join(pair.release_line for pair in new_pairs(PAGE))
        + "\nstacks:\n"
        + "\n".join(pair.stack_line for pair in new_pairs(PAGE))
        + "\n"
    )
    told = read_yaml(tmp_path / "lines.yaml").data
    releases = [Release.model_validate(row) for row in told["releases"]]
    assert releases[0].label == "rocm7.2.4.lw.git3d3aa833"
    assert releases[2].python == ("3.11", "3.12")
    assert list(told["stacks"])[2] == "rocm7.14-torch2.99.0"
    # The stack is refused only because the release is missing from the table.
    with pytest.raises(ValidationError, match=r"torch 2\.99\.0 is not a known release of source pytorch-packages"):
        Stack.model_validate(told["stacks"]["rocm7.14-torch2.99.0"])


def test_an_old_table_is_reported() -> None:
    checked = load_wheels().checked
    assert age_of_table(checked + timedelta(days=OLD_AFTER_DAYS)) is None
    assert "61 days ago" in (age_of_table(checked + timedelta(days=61)) or "")
