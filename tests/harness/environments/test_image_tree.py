import tarfile
from io import BytesIO

from harness.environments.image_tree import each_file


def test_of_the_files_of_an_image_only_one_is_kept_in_memory() -> None:
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in ("./a", "b", "c"):
            archive.addfile(tarfile.TarInfo(name))
    made.seek(0)
    with tarfile.open(fileobj=made, mode="r|") as archive:
        found = [(name, len(vars(archive)["members"])) for name, _, _ in each_file(archive)]
    assert found == [("a", 1), ("b", 1), ("c", 1)]
