"""Tests of `verify`: it computes again what a training claims, and does not trust the files that the training left."""

import json
import struct
import zipfile
from dataclasses import replace

import pytest
import torch

from vpoc.files import sha256_file
from vpoc.progress import Progress
from vpoc.training import kept_states
from vpoc.training.kept_states import drawn_steps, parts_of
from vpoc.training.run import train
from vpoc.training.verify import KeptState, verify


@pytest.fixture
def trained(options, tmp_path):
    """Return a function that trains with some options and returns the options and the result."""

    def make(**chosen):
        made = options(run_dir=tmp_path / "run", workload_hash="w", **chosen)
        train(made, tmp_path / "out", "m", Progress(made.run_dir), lambda _line: None)
        return made, json.loads((tmp_path / "run" / "result.json").read_text())

    return make


def verified(options, result, folder, number=0):
    """Return the findings about the main model, replayed from the state `number`."""
    state = result["states"][number]
    kind = result["model_kind"]
    states = {kind: KeptState(state["step"], folder / "run" / "states" / state["file"])}
    work = folder / "verification"
    work.mkdir(exist_ok=True)
    models = {kind: folder / "out" / result["model"]["file"]}
    return verify(replace(options, run_dir=work), models, states, 16, Progress(None))


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"loop": "resident"},
        {"model": ("attention-small",), "data_fraction": 0.5, "epochs": 1},
        {"chunk_rows": 64, "micro_batch_size": 3},
        {"keep": "best", "patience": 1, "learning_rate": 0.3, "epochs": 5, "clip_norm": 0.01, "schedule": "linear"},
    ],
    ids=["plain", "by hand", "attention", "in chunks", "best epoch"],
)
def test_a_training_is_what_it_says(chosen, trained, tmp_path):
    asked, result = trained(**chosen)
    kept = result["epoch_losses"][result["kept_epoch"] - 1]
    for number, state in enumerate(result["states"]):
        found = verified(asked, result, tmp_path, number)
        assert found["replay"]["sha256"] == state["sha256"]
        assert found["replay"]["step"] == state["step"]
        assert found["replay"]["loss"] == pytest.approx(state["loss"], rel=1e-5)
        assert found["replay"]["gradient_norm"] == pytest.approx(state["gradient_norm"], rel=1e-4)
        if not number:
            assert found["validation_loss"] == pytest.approx(kept["validation"], rel=1e-5)
            told = json.loads((tmp_path / "out" / "m_metadata.json").read_text())["metrics"]
            assert found["constant_rate_loss"] == told["constant_rate_loss"]
            known = {name: result["model"][name] for name in ("sha256", "bytes", "parameters")}
            assert found["model"] == {**known, "weights_sha256": result["kept_weights_sha256"]}


def test_states_are_kept_in_every_part_of_a_training(trained):
    _, result = trained(epochs=2)
    total = result["steps_done"]
    steps = [state["step"] for state in result["states"]]
    assert parts_of(total, 2, result["model"]["parameters"]) == len(steps) == 6
    assert [(step * 6 - 1) // total for step in steps] == list(range(6))


@pytest.mark.parametrize(
    ("steps", "epochs", "parameters", "parts"),
    [
        (1000, 2, 100, 6),
        (2, 1, 100, 2),
        (1000, 200, 100, kept_states.MOST_STATES),
        (1000, 200, 2_900_000, 11),
        (1000, 200, 1 << 30, 3),
    ],
)
def test_states_are_bounded_in_number_and_size(steps, epochs, parameters, parts):
    assert parts_of(steps, epochs, parameters) == parts
    drawn = drawn_steps(steps, parts, "mlp", "0" * 32)
    assert len(drawn) == parts
    assert min(drawn) >= 1
    assert max(drawn) <= steps


def test_the_steps_are_those_that_the_harness_expects():
    """The tests of `harness.evidence.files.kept_states`, by which the harness draws steps, have the same numbers."""
    assert sorted(drawn_steps(32, 6, "mlp", "0" * 32)) == [2, 8, 11, 20, 23, 32]
    assert sorted(drawn_steps(32, 6, "attention", "0" * 32)) == [5, 9, 15, 18, 24, 27]


@pytest.mark.slow
def test_which_steps_are_drawn_depends_on_the_run(monkeypatch, trained):
    monkeypatch.setenv("VPOC_NONCE", "a")
    first = trained()[1]["states"]
    monkeypatch.setenv("VPOC_NONCE", "b")
    other = trained()[1]["states"]
    assert [state["step"] for state in first] != [state["step"] for state in other]


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["plain", "resident"])
def test_to_keep_states_changes_no_bit(loop, options, trained, tmp_path):
    _, result = trained(loop=loop, batch_size=4)
    train(options(loop=loop, batch_size=4), tmp_path / "bare", "m", Progress(None), lambda _line: None)
    assert result["states"]
    assert sha256_file(tmp_path / "bare" / "m.pt") == result["model"]["sha256"]


@pytest.mark.slow
def test_a_state_of_another_step_is_noticed(trained, tmp_path):
    asked, result = trained(learning_rate=0.05)
    honest = verified(asked, result, tmp_path)["replay"]
    result["states"][0]["file"] = result["states"][-1]["file"]
    other = verified(asked, result, tmp_path)["replay"]
    assert other["loss"] != pytest.approx(honest["loss"], rel=1e-3)


@pytest.mark.slow
def test_a_changed_model_has_another_loss(trained, tmp_path):
    asked, result = trained()
    file = tmp_path / "out" / "m.pt"
    document = torch.load(file, weights_only=True)
    document["state_dict"]["0.weight"] *= 2
    torch.save(document, file)
    found = verified(asked, result, tmp_path)
    assert found["model"]["sha256"] == sha256_file(file)
    assert found["validation_loss"] != pytest.approx(result["epoch_losses"][-1]["validation"], rel=1e-3)


def larger(document):
    document["hidden_layers"] = [10**7, 10**7]


def of_another_target(document):
    document["target"] = "up_30"


def of_another_scaling(document):
    document["scaling"]["centre"][3] += 1


def of_other_dates(document):
    document["market"]["last"] = document["market"]["first"]


@pytest.mark.slow
@pytest.mark.parametrize("change", [larger, of_another_target, of_another_scaling, of_other_dates])
def test_a_model_of_something_else_is_none(change, trained, tmp_path):
    asked, result = trained()
    file = tmp_path / "out" / "m.pt"
    document = torch.load(file, weights_only=True)
    change(document)
    torch.save(document, file)
    found = verified(asked, result, tmp_path)
    assert (found["model"], found["validation_loss"]) == (None, None)
    assert str(file) in found["model_problem"]
    assert found["replay"]


# A directory of so many parts takes minutes to read, and twenty times its size of memory.
PARTS = 200_000 * (b"PK\1\2" + bytes(24) + b"\1" + bytes(17) + b"a")
MANY_PARTS = PARTS + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(PARTS), 0, 0)


@pytest.mark.parametrize(
    ("content", "model", "state"),
    [
        (b"no model", "not an intact model file", "not an intact file of a state"),
        (MANY_PARTS, *["much larger than the weights of such a model"] * 2),
    ],
    ids=["text", "many parts"],
)
def test_what_is_no_file_of_torch_is_no_model_and_no_state(content, model, state, trained, tmp_path):
    asked, result = trained()
    (tmp_path / "out" / "m.pt").write_bytes(content)
    (tmp_path / "run" / "states" / result["states"][0]["file"]).write_bytes(content)
    found = verified(asked, result, tmp_path)
    assert (found["model"], found["replay"]) == (None, None)
    assert model in found["model_problem"]
    assert state in found["replay_problem"]


def test_a_compressed_file_is_no_state(trained, tmp_path):
    """A compressed state could expand to a thousand times its size."""
    asked, result = trained()
    file = tmp_path / "run" / "states" / result["states"][0]["file"]
    with zipfile.ZipFile(file) as archive:
        parts = {part: archive.read(part) for part in archive.infolist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, content in parts.items():
            archive.writestr(part.filename, content)
    assert "not an intact file" in verified(asked, result, tmp_path)["replay_problem"]


def test_what_is_not_there_is_said(options, tmp_path):
    found = verify(options(run_dir=tmp_path), {}, {}, 2, Progress(None))
    assert (found["model_problem"], found["replay_problem"]) == ("there is no model file", "there is no state")
    assert len(found["steps"]) == 2
