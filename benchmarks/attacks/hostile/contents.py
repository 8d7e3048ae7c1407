"""Attacks with files of the right kind and wrong content: lies and garbage."""

import hashlib
import json
import os
import pickle
import shutil
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.attacks.hostile.app import BOTH, ESCAPES, HTML, App, attack, register

GROUP = "contents"
DEEP = 100_000
HUGE = 100 << 20
ENTRIES = 1_000_000
FAKE_STEPS = 29
NOT_A_MODEL = b"not a model"


def _result(text: Callable[[dict[str, Any]], str]) -> Callable[[App], None]:
    def act(app: App) -> None:
        app.run()
        (app.work / "result.json").write_text(text(app.result()), encoding="utf-8")

    return act


def _with(value: dict[str, Any], **changes: Any) -> str:
    return json.dumps({**value, **changes})


RESULTS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "deep": (f"is JSON {DEEP:,} deep", lambda _: "[" * DEEP),
    "deep-inside": (
        f"has options {DEEP:,} deep",
        lambda v: _with(v, options="X").replace('"X"', '{"a":' * DEEP + "1" + "}" * DEEP),
    ),
    "nan": (
        "has NaN as a loss",
        lambda v: _with(v, epoch_losses=[{"epoch": 1, "train": float("nan"), "validation": 1}]),
    ),
    "large-float": (
        "has 1e400 as its speed",
        lambda v: _with(v, throughput="X").replace('"X"', '{"samples_per_second": 1e400, "train_seconds": 1}'),
    ),
    "large-integer": ("has 2^70 steps", lambda v: _with(v, steps_done=2**70, steps_per_epoch=2**69)),
    "long-integer": (
        "has a number of a million digits",
        lambda v: _with(v, steps_done="X").replace('"X"', "9" * 1_000_000),
    ),
    "negative": ("has negative counts", lambda v: _with(v, samples={"train": -1, "validation": -1}, world_size=-1)),
    "huge-string": (f"has a string of {HUGE >> 20} MB", lambda v: _with(v, python="3" * HUGE)),
    "many-entries": (
        f"has {ENTRIES:,} first steps",
        lambda v: _with(v, first_steps=[{"step": n, "loss": 0.5, "gradient_norm": 0.5} for n in range(ENTRIES)]),
    ),
    "many-keys": (f"has {ENTRIES:,} options", lambda v: _with(v, options={str(n): n for n in range(ENTRIES)})),
    "surrogates": (
        "has half a surrogate in its strings",
        lambda v: _with(v, python="\ud800", torch={**v["torch"], "hip": "\ud800"}),
    ),
    "null-characters": ("has null characters in its strings", lambda v: _with(v, python="\0", numpy="\0")),
    "other-schema": ("is of schema 10^9", lambda v: _with(v, schema=10**9)),
    "one-state-often": (
        "names the first of its states a hundred times more",
        lambda v: _with(v, states=[*v["states"], *v["states"][:1] * 100]),
    ),
    "flattering-losses": (
        "claims a better validation loss than its model has",
        lambda v: _with(v, epoch_losses=[{**one, "validation": one["validation"] / 2} for one in v["epoch_losses"]]),
    ),
}
# Content that only looks odd to people: a reader may accept it, unless it is too large.
ODD_BUT_READABLE = ("null-characters", "huge-string")
IN_CONTAINERS_TOO = ("deep", "large-integer", "huge-string", "flattering-losses")
for _name, (_what, _text) in RESULTS.items():
    register(
        f"result-{_name}",
        GROUP,
        f"`result.json` {_what}",
        _result(_text),
        executors=BOTH if _name in IN_CONTAINERS_TOO else ("process",),
        may_complete="the string changed is only for people" if _name in ODD_BUT_READABLE else None,
    )


@attack("result, model and progress of an earlier run, and no training", executors=BOTH)
def earlier_run(app: App) -> None:
    _lay_out_earlier(app)


@attack("the same, with the run's own nonce put in", executors=BOTH)
def earlier_run_with_nonce(app: App) -> None:
    nonce = _nonce(app)
    _lay_out_earlier(app)
    lines = [json.dumps({**line, **nonce}) for line in app.progress()]
    (app.work / "progress-0.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    app.change_result(**nonce)


@attack("trains one epoch and claims both", executors=BOTH)
def half_as_all(app: App) -> None:
    app.done()
    app.run(app.words_with(epochs="1"))
    told = app.result()
    losses = told["epoch_losses"]
    app.change_result(
        epochs_requested=2,
        epochs_done=2,
        steps_done=2 * told["steps_done"],
        epoch_losses=[*losses, {**losses[0], "epoch": 2}],
        options={**told["options"], "epochs": 2},
    )


@attack("trains, and tells no progress", executors=BOTH)
def no_progress(app: App) -> None:
    folder = app.run_unseen()
    shutil.copyfile(folder / "result.json", app.work / "result.json")


@attack("trains, and leaves half of the lines of progress out", executors=BOTH)
def half_of_the_progress(app: App) -> None:
    folder = app.run_unseen()
    lines = (folder / "progress-0.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (app.work / "progress-0.jsonl").write_text("".join(lines[: len(lines) // 2]), encoding="utf-8")
    shutil.copyfile(folder / "result.json", app.work / "result.json")


@attack("trains 16 steps, fabricates progress after that, and lays out the model of an earlier run", executors=BOTH)
def fabricated_after_step_16(app: App) -> None:
    folder = app.run_unseen(16)
    lines = app.progress(folder)
    nonce = {key: value for key, value in lines[0].items() if isinstance(value, str) and key != "phase"}
    _lay_out_earlier(app)
    with (app.work / "progress-0.jsonl").open("w", encoding="utf-8") as stream:
        for line in lines:
            stream.write(json.dumps(line) + "\n")
        last = lines[-1]
        for epoch in (1, 2):
            for phase, done in (("step", FAKE_STEPS * epoch), ("validate", 7), ("checkpoint", 0)):
                last = {**last, "wall": time.time(), "monotonic": time.monotonic(), "phase": phase, "done": done}
                total = {"step": 2 * FAKE_STEPS, "validate": 7, "checkpoint": None}[phase]
                stream.write(json.dumps({**last, "total": total}) + "\n")
        stream.write(json.dumps({**last, "phase": "teardown", "done": 0, "total": None}) + "\n")
    app.change_result(**nonce)


@attack("progress has NaN as losses, and the result hides them as 0", executors=BOTH)
def hidden_nan(app: App) -> None:
    folder = app.run_unseen()
    lines = [{**line, "loss": float("nan"), "gradient_norm": float("nan")} for line in app.progress(folder)]
    (app.work / "progress-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    told = app.result(folder)
    app.write_result(
        {**told, "epoch_losses": [{**one, "train": 0.0, "validation": 0.0} for one in told["epoch_losses"]]}
    )


@attack("the model is no model", executors=BOTH)
def no_model(app: App) -> None:
    _with_model(app, NOT_A_MODEL)


@attack("first losses are invented", executors=BOTH)
def invented_losses(app: App) -> None:
    app.run()
    app.change_result(first_steps=[{**step, "loss": 0.5, "gradient_norm": 0.5} for step in app.result()["first_steps"]])


@attack("the model is a pickle that writes to a file of the host's user where it is loaded", executors=BOTH)
def pickle_as_model(app: App) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"echo planted >> {app.canary}/ssh-key",)

    _with_model(app, pickle.dumps(Payload()))


def _with_model(app: App, content: bytes) -> None:
    app.run()
    told = app.result()
    (app.work / "output" / told["model"]["file"]).write_bytes(content)
    told["model"].update(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    app.write_result(told)


@attack("HTML and terminal escapes in every string of the result", executors=BOTH, shown=True)
def html_in_result(app: App) -> None:
    app.run()
    app.write_result(
        _planted(app.result(), keep=("sha256", "command", "workload_hash", "device", "strategy", "dtype", "model_kind"))
    )


@attack(
    "HTML and terminal escapes in strings of the result that are for people",
    shown=True,
    may_complete="those strings are only for people",
    executors=BOTH,
)
def html_in_shown_strings(app: App) -> None:
    app.run()
    told = app.result()
    strings = dict.fromkeys(("app_version", "python", "numpy", "polars"), HTML + ESCAPES)
    app.change_result(
        **strings, devices=[{**one, "name": HTML + ESCAPES, "gfx": HTML + ESCAPES} for one in told["devices"]]
    )


@attack("HTML and terminal escapes as the last lines of output, and exit status 1", executors=BOTH, shown=True)
def html_in_output(app: App) -> None:
    app.run()
    print(f"RuntimeError: {HTML}{ESCAPES} out of memory\nTraceback {HTML}\x1b[31m{ESCAPES}", flush=True)
    app.done()
    print(f"HIP error: {HTML}{ESCAPES}\u202e ]]><!--", flush=True)
    sys.exit(1)


@attack("HTML and terminal escapes in its stacks as it crashes", shown=True, executors=BOTH)
def html_in_stacks(app: App) -> None:
    with app.training():
        lines = f'Current thread 0x1 (most recent call first):\n  File "{HTML}", line 1 in {ESCAPES}\n'
        (app.work / "stacks-0.txt").write_text(lines, encoding="utf-8")
    app.done()
    os.kill(os.getpid(), signal.SIGSEGV)


@attack("output that is not UTF-8, with null characters, and exit status 1")
def binary_output(app: App) -> None:
    app.run()
    sys.stdout.buffer.write(os.urandom(1 << 20) + b"\0" * 1000)
    sys.stdout.flush()
    app.done()
    sys.exit(1)


def _planted(value: Any, keep: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {key: one if key in keep else _planted(one, keep) for key, one in value.items()}
    if isinstance(value, list):
        return [_planted(one, keep) for one in value]
    return HTML + ESCAPES if isinstance(value, str) else value


def _nonce(app: App) -> dict[str, str]:
    """Return the values by which the real app's progress lines identify their run."""
    folder = app.work / "scratch" / "unseen"
    folder.mkdir(parents=True, exist_ok=True)
    process = app.start(app.words_with(run_dir=str(folder)))
    while process.poll() is None and not (lines := app.progress(folder)):
        time.sleep(0.02)
    process.kill()
    process.wait()
    return {key: value for key, value in lines[0].items() if isinstance(value, str) and key != "phase"}


def _lay_out_earlier(app: App) -> None:
    for name in ("result.json", "progress-0.jsonl"):
        shutil.copyfile(app.earlier / name, app.work / name)
    shutil.copytree(app.earlier / "output", app.work / "output", dirs_exist_ok=True)
