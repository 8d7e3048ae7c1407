"""Tests of what is not started and what is removed, on a stand-in for the engine."""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from docker.errors import APIError, ImageNotFound

from harness.environments.executors.container import Container
from harness.environments.executors.docker import LABEL, NO_PROGRAM, DockerExecutor
from harness.environments.executors.job import Job, JobLost
from harness.evidence.files.run_folder import RunFolder
from harness.host.engine_client import FOLDER_MODE, TooLargeAnswerError
from harness.run.watch.watch import Watch
from tests.harness.environments.executors.engine_stand_in import ENDED, RUNNING, Api, engine_of

if TYPE_CHECKING:
    from harness.host.engine import Engine

# Bits of Go's `os.FileMode`.
PIPE, LINK = 1 << 25, 1 << 27


def test_an_image_with_a_place_that_can_be_written_to_and_stays_is_refused(tmp_path: Path) -> None:
    api = Api(ENDED)
    api.volumes = {"/kept": {}, "/a\nb": {}}
    container = Container("image", 1000, 1000, str(tmp_path))
    watch = Watch(RunFolder(tmp_path), DockerExecutor(engine_of(api), tmp_path), lambda _: None, None)
    assert watch.execute(Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt", container), 60) is None
    assert watch.stopped_by == "start"
    assert watch.stop_detail.startswith(r"vpoc could not be started: its image declares volumes (/a\nb, /kept), which")


def test_that_of_an_image_too_much_is_reported_is_no_silence_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(_: str) -> None:
        raise TooLargeAnswerError("image large has labels")

    api = Api(ENDED)
    monkeypatch.setattr(api, "inspect_image", tell)
    job = Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt", Container("image", 1000, 1000, str(tmp_path)))
    with pytest.raises(OSError, match="image large has labels"):
        DockerExecutor(engine_of(api), tmp_path).start(job)


@pytest.mark.parametrize(
    ("refusals", "of_empty", "ended"),
    [
        pytest.param(2, False, OSError, id="of-this-image-alone"),
        pytest.param(2, True, JobLost, id="of-every-image"),
        pytest.param(1, False, None, id="once"),
    ],
)
def test_what_the_engine_refuses_of_this_image_alone_is_the_fault_of_the_image(
    refusals: int, of_empty: bool, ended: type[Exception] | None, tmp_path: Path
) -> None:
    """The engine's words cannot decide this: they differ between versions, and may repeat what the image says."""
    api, begun, removed = Api(RUNNING), list[tuple[str, str]](), list[str]()

    def create(*, image: str, entrypoint: list[str], **_: object) -> Any:
        def start() -> None:
            if of_empty or (image == "image" and begun.count(("image", "vpoc")) <= refusals):
                raise APIError("not a directory")

        begun.append((image, entrypoint[0]))
        return SimpleNamespace(id=image, start=start, remove=lambda **_: removed.append(image))

    client = SimpleNamespace(
        api=SimpleNamespace(
            **{name: getattr(api, name) for name in ("inspect_image", "logs", "seen_in")},
            import_image_from_data=lambda _: '{"status":"empty"}\r\n',
            remove_image=lambda name, **_: removed.append(f"image {name}"),
        ),
        containers=SimpleNamespace(create=create),
    )
    executor = DockerExecutor(cast("Engine", SimpleNamespace(client=client, api_with_timeout=api)), tmp_path)
    job = Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt", Container("image", 0, 0, str(tmp_path)))
    if ended:
        with pytest.raises(ended, match="not a directory"):
            executor.start(job)
    else:
        executor.start(job)
    again = [] if of_empty else [("image", "vpoc")]
    # Each image is first inspected in a container that is not started.
    looked_at = [("image", NO_PROGRAM), ("empty", NO_PROGRAM)]
    assert begun == [looked_at[0], ("image", "vpoc"), looked_at[1], ("empty", NO_PROGRAM), *again]
    ended_by_removal = [] if of_empty or not ended else ["image"]
    assert removed == ["image", "image", "empty", "empty", "image empty", *ended_by_removal]


def test_an_engine_that_imports_in_other_words_decides_nothing_about_the_image(tmp_path: Path) -> None:
    def create(**_: object) -> Any:
        def start() -> None:
            raise APIError("not a directory")

        return SimpleNamespace(id="a", start=start, remove=lambda **_: None)

    real = Api(RUNNING)
    names = {name: getattr(real, name) for name in ("inspect_image", "logs", "seen_in")}
    api = SimpleNamespace(**names, import_image_from_data=lambda _: "{}")
    client = SimpleNamespace(api=api, containers=SimpleNamespace(create=create))
    executor = DockerExecutor(cast("Engine", SimpleNamespace(client=client, api_with_timeout=Api(RUNNING))), tmp_path)
    job = Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt", Container("image", 0, 0, str(tmp_path)))
    with pytest.raises(JobLost, match="not a directory"):
        executor.start(job)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (
            {"/etc/passwd": (PIPE, 0)},
            "/etc/passwd of its image is something else, which .*; put a file there in the image",
        ),
        # Images that were made with Nix are like this.
        (
            {"/etc": (FOLDER_MODE, 10), "/etc/passwd": (LINK, 60)},
            "/etc/passwd of its image is a link, which .*; put a file there .*`RUN cp .* /etc/passwd`",
        ),
        (
            {"/etc": (FOLDER_MODE, 10), "/etc/passwd": (0, 100), "/etc/group": (0, 2 << 20)},
            "/etc/group .* larger than any",
        ),
        ({"/etc": (LINK, 4)}, "/etc of its image is a link, which .*; put a folder there"),
        ({"/work": (LINK, 4)}, "/work of its image is a link, which .*; put a folder there"),
        ({"/data": (LINK, 4)}, "/data of its image is a link, which .*; put a folder there"),
        (
            {"/data": (FOLDER_MODE, 4), "/data/merged.csv": (LINK, 4)},
            "/data/merged.csv of its image is a link, which .*; put a folder there",
        ),
        ({"/etc": (FOLDER_MODE, 10), "/etc/passwd": (0, 100)}, None),
    ],
)
def test_what_an_engine_would_read_without_end_or_follow_is_not_started(
    seen: dict[str, tuple[int, int]], why: str | None, tmp_path: Path
) -> None:
    """The engine would hold such a container for good and seem to be silent, or let root write into the work folder.

    An engine also makes mount points when it only looks into a container, so it looks into one without mounts.
    """
    api, done, mounts = Api(RUNNING), list[str](), list[Any]()
    api.seen = seen
    made = SimpleNamespace(id="c", start=lambda: done.append("start"), remove=lambda **_: done.append("remove"))

    def create(**options: Any) -> Any:
        mounts.append(options.get("mounts"))
        return made

    client = SimpleNamespace(api=api, containers=SimpleNamespace(create=create))
    executor = DockerExecutor(cast("Engine", SimpleNamespace(client=client, api_with_timeout=api)), tmp_path)
    container = Container("image", 0, 0, str(tmp_path), ("/home/me/merged.csv",))
    job = Job(("vpoc",), {}, tmp_path, tmp_path / "log.txt", container)
    if why:
        with pytest.raises(OSError, match=why):
            executor.start(job)
    else:
        executor.start(job)
    assert done == (["remove"] if why else ["remove", "start"])
    assert mounts[0] is None


def test_containers_of_folders_that_are_gone_are_removed_unless_they_run(tmp_path: Path) -> None:
    api, runs = Api(ENDED), tmp_path / "runs"
    for name in ("recorded", "unfinished"):
        (runs / name).mkdir(parents=True)
    listed = {
        "recorded": (runs / "recorded", "running"),
        "unfinished": (runs / "unfinished", "exited"),
        "gone": (tmp_path / "data", "exited"),
        # The container belongs to a harness with another results folder.
        "elsewhere": (tmp_path / "their" / "runs" / "r1", "running"),
        "hidden": (tmp_path / "file" / "r1", "exited"),
    }
    (tmp_path / "file").touch()
    api.listed = [container_of(name, folder, state) for name, (folder, state) in listed.items()]
    DockerExecutor(engine_of(api), runs).remove_leftovers(lambda run_id: run_id == "recorded" or None)
    assert api.removed == ["recorded", "gone"]


def container_of(name: str, folder: Path, state: str) -> dict[str, Any]:
    return {"Id": name, "ImageID": "image", "Labels": {LABEL: str(folder)}, "State": state}


def test_a_container_that_has_the_label_of_its_image_is_somebody_elses_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(_: str) -> None:
        raise ImageNotFound("no such image")

    api = Api(ENDED)
    api.listed = [container_of("by-hand", tmp_path / "gone", "exited")]
    executor = DockerExecutor(engine_of(api), tmp_path)
    api.labels = {LABEL: str(tmp_path / "gone")}
    executor.remove_leftovers(lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(api, "inspect_image", tell)
        executor.remove_leftovers(lambda _: None)
    assert api.removed == []
    # The harness gives the container of a run a label of its own.
    api.labels = {LABEL: "/another"}
    executor.remove_leftovers(lambda _: None)
    assert api.removed == ["by-hand"]
