from pathlib import Path

import pytest

from harness.host.file_systems import is_network, mount_in

MOUNTS = """22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:40 / /shared rw,relatime shared:1 - nfs4 server:/export rw
31 30 0:41 / /shared/my\\040disk rw - xfs /dev/vdb rw
32 22 0:42 / /data rw - ext4 /dev/vdc rw
33 32 0:43 / /data rw - fuse.sshfs user@host: rw
34 22 0:44 / /runs/a/work/\x0cb rw - tmpfs none rw
"""


@pytest.mark.parametrize(
    ("place", "network"),
    [
        ("/shared/results", True),
        ("/shared", True),
        ("/sharedness", False),
        ("/shared/my disk/results", False),
        ("/home/me/results", False),
        ("/data/results", True),
    ],
)
def test_the_mount_that_a_place_is_on_decides(place: str, network: bool, tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTS)
    assert is_network(Path(place), file) is network


def test_where_nothing_is_known_it_is_none(tmp_path: Path) -> None:
    assert not is_network(Path("/shared"), tmp_path / "none")
    assert not mount_in(Path("/shared"), tmp_path / "none")


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("/shared/my disk", "'/shared/my disk' was mounted over"),
        ("/shared", "/shared was mounted over"),
        ("/shared/my", ""),
        ("/shared/my disk/run", ""),
        ("/runs/a", "'/runs/a/work/\\x0cb' was mounted over"),
        ("/runs/b", ""),
    ],
)
def test_only_what_is_mounted_over_a_folder_or_in_it_counts(folder: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTS)
    assert mount_in(Path(folder), file) == said
