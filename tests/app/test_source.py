import shutil

import pytest

from vpoc.source import HERE, ROOMS, features_source


@pytest.mark.parametrize("change", ["profile/levels.py", "data/exchange/sessions.py", "kernel/profiles.c"])
def test_other_source_has_another_identity(tmp_path, change):
    for room in ROOMS:
        shutil.copytree(HERE / room, tmp_path / room, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "cli.py").touch()
    assert features_source(tmp_path) == features_source()
    with (tmp_path / change).open("a") as file:
        file.write("\n")
    features_source.cache_clear()
    changed = features_source(tmp_path)
    (tmp_path / change).rename(tmp_path / f"{change}.renamed{(tmp_path / change).suffix}")
    features_source.cache_clear()
    assert len({features_source(), changed, features_source(tmp_path)}) == 3
