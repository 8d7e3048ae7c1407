"""Attacks on the run folder itself: moved, deleted, made inaccessible, or with a forged record."""

import json
import os
import shutil
import sys
from pathlib import Path

from benchmarks.attacks.hostile.app import BOTH, UNCHANGED, App, attack, link, replace


def _empty(folder: Path) -> None:
    for place in folder.iterdir():
        replace(place)


@attack("everything in its folder is deleted at the end", executors=BOTH)
def emptied(app: App) -> None:
    app.run()
    _empty(app.work)


@attack("everything in its folder is deleted while it trains", executors=BOTH)
def emptied_in_training(app: App) -> None:
    with app.training(3):
        app.done()
        _empty(app.work)


@attack("its folder is deleted")
def deleted(app: App) -> None:
    app.run()
    app.done()
    shutil.rmtree(app.work)


@attack("the whole run folder is deleted")
def run_folder_deleted(app: App) -> None:
    app.run()
    app.done()
    shutil.rmtree(app.run_folder)


@attack("its folder is moved away", executors=BOTH)
def moved(app: App) -> None:
    app.run()
    app.done()
    try:
        app.work.rename(app.work.with_name("moved"))
    except OSError as error:
        print(f"refused: {error}", flush=True)
        (app.work / "scratch" / "moved").mkdir(parents=True)
        for place in app.work.iterdir():
            if place.name != "scratch":
                place.rename(app.work / "scratch" / "moved" / place.name)


@attack("the whole run folder is moved away, and a link to a folder of the host's user is in its place")
def run_folder_moved(app: App) -> None:
    app.run()
    app.done()
    folder = app.run_folder
    folder.rename(folder.with_name(".moved"))
    folder.symlink_to(app.canary)


@attack("its folder is moved, and a link to a folder of the host's user is in its place")
def work_is_link(app: App) -> None:
    app.run()
    app.done()
    app.work.rename(app.work.with_name("moved"))
    app.work.symlink_to(app.canary)


@attack("its folder is moved, and a file is in its place")
def work_is_file(app: App) -> None:
    app.run()
    app.done()
    app.work.rename(app.work.with_name("moved"))
    app.work.write_text("a file\n", encoding="utf-8")


@attack("its folder and all in it are closed to everybody: chmod 000", executors=BOTH, may_complete=UNCHANGED)
def closed(app: App) -> None:
    app.run()
    app.done()
    for place in (app.work / "result.json", app.work / "output", app.work / "scratch", app.work):
        place.chmod(0)


@attack("`output/` and its folders are closed to everybody: chmod 000", may_complete=UNCHANGED, executors=BOTH)
def output_closed(app: App) -> None:
    app.run()
    for place in (app.work / "output" / "model.pt", app.work / "output"):
        place.chmod(0)


@attack("set-user-id and world-writable files are left", may_complete=UNCHANGED)
def set_user_id(app: App) -> None:
    app.run()
    shutil.copyfile("/bin/sh", app.work / "output" / "sh")
    (app.work / "output" / "sh").chmod(0o6777)
    app.work.chmod(0o777)


def _forge(app: App, folder: Path) -> None:
    told = json.loads((app.earlier / "record.json").read_text(encoding="utf-8"))
    try:
        told["intent"] = json.loads((folder / "intent.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        told["intent"]["run_id"] = app.run_folder.name
    link(folder / "record.json", "forged")
    replace(folder / "record.json").write_text(json.dumps(told), encoding="utf-8")
    replace(folder / "intent.json").write_text(json.dumps({**told["intent"], "options": {}}), encoding="utf-8")


@attack("a forged record says `completed`, the intent is changed, and it exits with status 1", executors=BOTH)
def forged_record(app: App) -> None:
    with app.training():
        _forge(app, app.work)
        if app.run_folder != app.work:
            _forge(app, app.run_folder)
    app.done()
    sys.exit(1)


@attack("rubbish under the harness's own names is in its folder", may_complete=UNCHANGED)
def forged_rubbish(app: App) -> None:
    with app.training():
        for name in ("record.json", "intent.json", "imported.json", "process.json"):
            replace(app.work / name).write_text("{" * 100_000, encoding="utf-8")


@attack("folders of the harness's own names are in its folder", may_complete=UNCHANGED)
def names_of_the_harness(app: App) -> None:
    app.run()
    for name in ("failure", "work", "runs", "references", "campaigns", "record", "probe-gpu0.txt", ".recovery.lock"):
        replace(app.work / name).mkdir()
    for name in ("record.json", "intent.json", "log.txt"):
        (app.work / "work" / name).write_text("{}", encoding="utf-8")


@attack("its log is replaced by a pipe that nobody writes to, and it crashes")
def log_is_pipe(app: App) -> None:
    app.done()
    log = app.run_folder / "log.txt"
    replace(log)
    os.mkfifo(log)
    sys.exit(1)
