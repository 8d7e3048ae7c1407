import contextlib
import io
import math
import random
import time
import tracemalloc
from collections import OrderedDict
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from vpoc.errors import UserError
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.table import NAMES
from vpoc.models.by_name import fresh_network, network
from vpoc.training.checkpoint import History, Position, write_checkpoint
from vpoc.training.inputs.scaling import fit_scaling
from vpoc.training.model_file import artefact
from vpoc.training.model_file.artefact import load_model, load_plain, require_finite, serialise, weights_sha256

OPTIONS = FeatureOptions(rows="session", as_of="open", lookback=20, rolls="none")
SCALING = fit_scaling(np.random.default_rng(1).normal(size=(40, len(NAMES))).astype(np.float32), np.arange(40))
FACTS = {
    "model": "mlp",
    "hidden_layers": [4],
    "scaling": SCALING.as_json(),
    "target": "next_up",
    "feature_options": asdict(OPTIONS),
    "bar_seconds": 60,
}


def weights(seed, kind="mlp"):
    return fresh_network(kind, len(NAMES), [4], seed).state_dict()


@pytest.fixture
def content():
    return serialise(weights(7), FACTS)


def test_a_model_file_holds_plain_values_only(content):
    document = torch.load(io.BytesIO(content), weights_only=True)
    assert document["schema"] == 3
    assert document["hidden_layers"] == [4]
    assert document["features"] == list(NAMES)
    assert document["scaling"] == SCALING.as_json()
    assert document["feature_options"] == asdict(OPTIONS)


def test_what_is_written_is_read(content, tmp_path):
    path = tmp_path / "m.pt"
    path.write_bytes(content)
    loaded = load_model(path)
    require_finite(loaded)
    assert weights_sha256(loaded.model.state_dict()) == weights_sha256(weights(7))
    assert weights_sha256(loaded.model.state_dict()) != weights_sha256(weights(8))
    assert (loaded.bytes, loaded.target, loaded.feature_options) == (len(content), "next_up", OPTIONS)
    assert (loaded.features, loaded.scaling.as_json(), loaded.bar_seconds) == (list(NAMES), SCALING.as_json(), 60)


def test_trades_and_chunks_of_any_size_are_read(tmp_path):
    """A training accepts both; single trades have bars of 0 seconds."""
    options = asdict(replace(OPTIONS, chunk_size=1_000_000_000))
    (tmp_path / "m.pt").write_bytes(serialise(weights(7), {**FACTS, "bar_seconds": 0, "feature_options": options}))
    assert load_model(tmp_path / "m.pt").bar_seconds == 0


@pytest.mark.parametrize("kind", ["attention", "attention-small"])
def test_attention_is_read_as_it_was(tmp_path, kind):
    path = tmp_path / "m.pt"
    path.write_bytes(serialise(weights(7, kind), {**FACTS, "model": kind}))
    loaded = load_model(path)
    require_finite(loaded)
    assert loaded.kind == kind
    assert weights_sha256(loaded.model.state_dict()) == weights_sha256(weights(7, kind))


def test_a_file_of_before_there_were_models_to_choose_is_an_mlp(content, tmp_path):
    document = torch.load(io.BytesIO(content), weights_only=True)
    del document["model"]
    torch.save(document, tmp_path / "m.pt")
    assert load_model(tmp_path / "m.pt").kind == "mlp"


@pytest.mark.parametrize("schema", [1, 2, 4])
def test_a_model_of_another_version_says_so(content, tmp_path, schema):
    document = torch.load(io.BytesIO(content), weights_only=True)
    torch.save({**document, "schema": schema, "scaling": {"vpoc_dist": "atr20"}}, tmp_path / "m.pt")
    with pytest.raises(UserError, match=r"a model of another version of vpoc, .* train it again") as caught:
        load_model(tmp_path / "m.pt")
    assert caught.value.exit_code == 1


def test_forgotten_facts_are_our_own_bug():
    for missing in FACTS:
        with pytest.raises(ValueError, match=missing):
            serialise(weights(7), {key: value for key, value in FACTS.items() if key != missing})
    with pytest.raises(ValueError, match="more"):
        serialise(weights(7), {**FACTS, "more": 1})


def test_damaged_files_are_one_line(content, tmp_path):
    path = tmp_path / "m.pt"
    rng = random.Random(7)
    for cut in [1, 100, len(content) // 2, len(content) - 1]:
        path.write_bytes(content[:cut])
        with pytest.raises(UserError, match="not an intact model file") as caught:
            load_model(path)
        assert caught.value.exit_code == 1
    for _ in range(30):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 0xFF
        path.write_bytes(damaged)
        # A flipped byte in a name or in padding may go unnoticed; any error but a UserError fails the test.
        with contextlib.suppress(UserError):
            load_model(path)


def test_a_checkpoint_is_not_called_a_damaged_model(tmp_path):
    path = write_checkpoint(tmp_path, {"steps_done": 1}, Position(), History(), {}, {})
    with pytest.raises(UserError, match="a checkpoint, from which a training resumes, and no model; give") as caught:
        load_model(path)
    assert caught.value.exit_code == 1


def test_a_model_with_options_of_another_version_is_refused(tmp_path):
    path = tmp_path / "m.pt"
    for options in (asdict(OPTIONS) | {"more": 1}, 3, None):
        path.write_bytes(serialise(weights(7), {**FACTS, "feature_options": options}))
        with pytest.raises(UserError, match="not an intact model file"):
            load_model(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        {"features": list(range(len(NAMES)))},
        {"target": [["up_30"]]},
        {"target": "up_30"},
        {"bar_seconds": "60"},
        {"bar_seconds": -1},
        {"bar_seconds": 10**400},
        {"bar_seconds": math.nan},
        {"feature_options": {"rows": ["bar"]}},
        {"feature_options": {"rows": "tick"}},
        {"feature_options": {"rth_close": "17:00"}},
        {"feature_options": {"as_of": "noon"}},
        {"feature_options": {"placement": "zzz"}},
        {"feature_options": {"value_area": "zzz"}},
        {"feature_options": {"rolls": "a\0b"}},
        {"feature_options": {"lookback": -1}},
        {"market": {"first": "2024-13-01"}},
        {"market": {"first": "2024-W01-1"}},
        {"market": {"last": "20240101"}},
        {"market": {"tick": 0.0}},
        {"market": {"symbol": None}},
        # A network of a million layers would take minutes to build.
        {"hidden_layers": [1] * 1_000_000},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_facts_that_no_training_writes_are_one_line(wrong, content, tmp_path):
    document = torch.load(io.BytesIO(content), weights_only=True)
    for name, value in wrong.items():
        document[name] = {**document[name], **value} if isinstance(value, dict) else value
    torch.save(document, tmp_path / "m.pt")
    began = time.process_time()
    with pytest.raises(UserError, match="not an intact model file"):
        load_model(tmp_path / "m.pt")
    assert time.process_time() - began < 30


def test_a_network_of_more_layers_than_a_training_may_have_is_not_made(content, tmp_path):
    document = torch.load(io.BytesIO(content), weights_only=True)
    layers = [1] * 257
    deep = network("mlp", len(document["features"]), layers).state_dict()
    torch.save({**document, "hidden_layers": layers, "state_dict": dict(deep)}, tmp_path / "m.pt")
    with pytest.raises(UserError, match="not an intact model file"):
        load_model(tmp_path / "m.pt")


def test_a_network_that_is_larger_than_its_file_is_not_made(content, tmp_path, monkeypatch):
    document = torch.load(io.BytesIO(content), weights_only=True)
    torch.save({**document, "hidden_layers": [1000, 1000]}, tmp_path / "m.pt")
    made = []
    monkeypatch.setattr(artefact, "network", lambda *of: made.append(torch.empty(0).device.type) or network(*of))
    with pytest.raises(UserError, match="not an intact model file"):
        load_model(tmp_path / "m.pt")
    assert made == ["meta"]


def test_metadata_cannot_change_the_type_of_the_weights(tmp_path):
    typed = OrderedDict((name, weight.double()) for name, weight in weights(7).items())
    typed._metadata = {name: {"assign_to_params_buffers": True} for name in ("", "0", "2")}
    path = tmp_path / "m.pt"
    path.write_bytes(serialise(typed, FACTS))
    loaded = load_model(path)
    require_finite(loaded)
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("what", [b"", b"not a model", None])
def test_other_files_are_refused(tmp_path, what):
    path = tmp_path / "m.pt"
    if what is None:
        torch.save({"weights": torch.zeros(3)}, path)
    else:
        path.write_bytes(what)
    with pytest.raises(UserError):
        load_model(path)


def test_weights_that_are_not_finite_are_found(tmp_path):
    unhealthy = weights(7)
    # The ReLU turns it into 0, so the answers do not show it.
    unhealthy["0.bias"][0] = float("-inf")
    path = tmp_path / "m.pt"
    path.write_bytes(serialise(unhealthy, FACTS))
    with pytest.raises(UserError, match="not finite") as caught:
        require_finite(load_model(path))
    assert caught.value.exit_code == 1


def test_a_list_that_is_in_itself_many_times_over_is_in_no_file():
    """Showing or converting it would have no end, and listing what is in it at each step takes 180 MB."""
    in_itself: list[object] = []
    in_itself += [in_itself] * 3000
    saved = io.BytesIO()
    torch.save({"features": in_itself}, saved)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more values than bytes"):
            load_plain(saved.getvalue())
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_tensor_that_repeats_a_number_is_not_taken_for_a_list(content, tmp_path):
    """As the list of layers, one of 2 kB filled 6 GB of memory and more before it was refused."""
    document = torch.load(io.BytesIO(content), weights_only=True)
    repeated = torch.zeros(1).expand(300_000)
    for name in ("hidden_layers", "scaling"):
        value = {**document["scaling"], "size": repeated} if name == "scaling" else repeated
        torch.save({**document, name: value}, tmp_path / "m.pt")
        with pytest.raises(ValueError, match="more values than bytes"):
            load_plain((tmp_path / "m.pt").read_bytes())
        tracemalloc.start()
        try:
            with pytest.raises(UserError, match="not an intact model file"):
                load_model(tmp_path / "m.pt", "mlp", document["hidden_layers"])
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
