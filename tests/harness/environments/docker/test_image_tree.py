import tarfile
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO

from harness.environments.docker.image_tree import MOST_DIFFERENCES, ImageFile, differences, each_file

FILE = ImageFile("file", 0o644, (0, 0), "", "a" * 64)


def test_of_the_files_of_an_image_only_one_is_kept_in_memory() -> None:
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in ("./a", "b", "c"):
            archive.addfile(tarfile.TarInfo(name))
    made.seek(0)
    with tarfile.open(fileobj=made, mode="r|") as archive:
        found = [(name, len(vars(archive)["members"])) for name, _, _ in each_file(archive)]
    assert found == [("a", 1), ("b", 1), ("c", 1)]


def test_what_differs_is_named_by_path_and_why() -> None:
    first = [("same", FILE), ("mode", FILE), ("added", FILE)]
    second = {"same": FILE, "mode": replace(FILE, mode=0o755), "gone": FILE}
    expected = ["/added: only in the first", "/gone: only in the second", "/mode: mode 0644 and 0755"]
    assert differences(first, second) == expected


def test_of_an_image_of_somebody_else_only_a_thousand_files_that_differ_are_named_and_no_more_is_read() -> None:
    read = 0

    def files() -> Iterator[tuple[str, ImageFile]]:
        nonlocal read
        for read in range(1, 100_000):
            yield f"{read:06}" + "n" * 200, FILE

    tracemalloc.start()
    try:
        found = differences(files(), {"gone": FILE})
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (read, len(found)) == (MOST_DIFFERENCES + 1, MOST_DIFFERENCES + 1)
    assert found[-1] == "and more: the rest was not compared"
    assert most < 4 << 20
