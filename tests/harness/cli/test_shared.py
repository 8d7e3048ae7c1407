import pytest

from harness.base.errors import UserError
from harness.cli.shared import known
from harness.matrix.cells import Matrix


@pytest.mark.parametrize("name", ["rocm6.3-plain", "rocm7-plain", "rocm6-tensorflow-plane"])
def test_no_excluded_cell_is_suggested(name: str, matrix: Matrix) -> None:
    with pytest.raises(UserError, match="did you mean") as refused:
        known(name, matrix.cells, "cell")
    suggested = str(refused.value).removesuffix("?").rpartition(" ")[2]
    assert matrix.cells[suggested].excluded is None


def test_of_plain_names_the_nearest_is_suggested() -> None:
    with pytest.raises(UserError, match="did you mean quick"):
        known("quik", ["quick", "standard"], "workload")
    with pytest.raises(UserError, match=r"did you mean cpu-plain\?"):
        known("cpuu", ["cpu-plain", "cpu-notes-stable", "rocm6.3-plain"], "cell")
    assert known("quick", ["quick"], "workload") == "quick"
