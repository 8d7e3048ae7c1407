import tarfile
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO

from harness.environments.docker.image_tree import MOST_DIFFERENCES, ImageFile, _entries, differences, each_file

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


def test_a_device_is_no_empty_file_and_a_program_with_capabilities_is_another() -> None:
    def tree(kind: bytes, **attributes: str) -> dict[str, ImageFile]:
        made, entry = BytesIO(), tarfile.TarInfo("a")
        entry.type, entry.pax_headers = kind, attributes
        with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
            archive.addfile(entry)
        made.seek(0)
        with tarfile.open(fileobj=made, mode="r|") as archive:
            return dict(_entries(each_file(archive)))

    plain = tree(tarfile.REGTYPE)
    assert differences(tree(tarfile.REGTYPE, mtime="1.5").items(), plain) == []
    (device,) = differences(tree(tarfile.CHRTYPE).items(), plain)
    assert device.startswith("/a: kind special file and file, content none and ")
    (capable,) = differences(tree(tarfile.REGTYPE, **{"SCHILY.xattr.security.capability": "\x01\udcff"}).items(), plain)
    assert capable.startswith("/a: attributes ")
    assert capable.endswith(" and none")


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
