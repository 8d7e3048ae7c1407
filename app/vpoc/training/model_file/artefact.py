"""The model file, which contains only tensors and plain values, so that it loads with `weights_only=True`."""

import io
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

from vpoc.errors import UserError
from vpoc.features.feature_options import CHOICES, RTH_CLOSES, FeatureOptions
from vpoc.features.market import UNKNOWN_MARKET, Market
from vpoc.features.table import NAMES
from vpoc.features.targets import TARGETS
from vpoc.files import read_bytes, sha256
from vpoc.models.by_name import Network, input_shape, network
from vpoc.training.inputs.scaling import Scaling
from vpoc.training.model_file.saved_file import load_saved, values_in
from vpoc.training.train_options import MOST_LAYERS

MODEL_SCHEMA = 3
"""Since schema 3 a model file contains the scaling that was fitted with the model."""
LARGEST_FACT = 1e6
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
KEYS = {
    *("schema", "state_dict", "model", "hidden_layers", "features", "scaling", "target"),
    *("feature_options", "bar_seconds", "market"),
}


@dataclass(frozen=True)
class LoadedModel:
    """A model read from `path`: the network on the CPU, ready to predict, and the facts of its training."""

    path: Path
    sha256: str
    bytes: int
    kind: str
    model: Network
    features: list[str]
    scaling: Scaling
    target: str
    feature_options: FeatureOptions
    bar_seconds: int
    market: Market = UNKNOWN_MARKET


def serialise(weights: dict[str, torch.Tensor], facts: dict[str, Any]) -> bytes:
    """Return the content of a model file with `weights`, on the CPU, and the plain values in `facts`."""
    document = {
        "schema": MODEL_SCHEMA,
        "state_dict": weights,
        "features": list(NAMES),
        "market": asdict(UNKNOWN_MARKET),
        **facts,
    }
    if document.keys() != KEYS:
        raise ValueError(sorted(document.keys() ^ KEYS))
    buffer = io.BytesIO()
    torch.save(document, buffer)
    return buffer.getvalue()


def load_model(path: Path, kind: str | None = None, hidden_layers: Sequence[int] | None = None) -> LoadedModel:
    """Read a model file; UserError with exit code 1 when it is truncated, corrupt or no model of this program.

    The same error is raised for a model of another `kind`, or of other `hidden_layers` if it is an mlp, when these are
    given.
    """
    content = read_bytes(path)
    try:
        document = load_plain(content)
        if "position" in document and "state" in document:
            raise UserError(
                f"{path}: a checkpoint, from which a training resumes, and no model; give the model, which is beside "
                "the folder of checkpoints once the training is complete",
                exit_code=1,
            )
        if document["schema"] != MODEL_SCHEMA:
            raise UserError(
                f"{path}: a model of another version of vpoc, with features or a scaling that this one does not "
                "compute; train it again",
                exit_code=1,
            )
        asked = kind, hidden_layers if kind == "mlp" else None
        kind = document.get("model", "mlp")
        # Check before such a network is created, because it may be large.
        if (asked[0] or kind) != kind or (asked[1] is not None and list(asked[1]) != list(document["hidden_layers"])):
            raise ValueError(kind)
        if kind == "mlp" and len(document["hidden_layers"]) > MOST_LAYERS:
            raise ValueError("more layers than a training may have")
        shape = kind, len(document["features"]), document["hidden_layers"]
        with torch.device("meta"):
            needed = sum(weight.nbytes for weight in network(*shape).parameters())
        # A file can store weights that are all one number in little space.
        if needed > len(content):
            raise ValueError("larger than its file")
        model = network(*shape)
        _load(model, document["state_dict"])
        facts = {name: document[name] for name in ("features", "target", "bar_seconds")}
        facts["scaling"] = Scaling.from_json(document["scaling"], len(facts["features"]))
        facts["feature_options"] = FeatureOptions(**document["feature_options"])
        # Older models do not have a market.
        facts["market"] = Market(**document.get("market", {}))
        _require_plain(facts)
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in the unpickler
        raise UserError(f"{path}: not an intact model file; train it again or copy it again", exit_code=1) from error
    model.eval()
    return LoadedModel(path=path, sha256=sha256(content), bytes=len(content), kind=kind, model=model, **facts)


def _require_plain(facts: dict[str, Any]) -> None:
    """Raise ValueError unless the facts of a model have the types that `serialise` was given."""
    options, market = facts["feature_options"], facts["market"]
    of_type: list[tuple[type[Any], Any]] = [(str, name) for name in (facts["target"], *facts["features"])]
    for given, usual in ((options, FeatureOptions()), (market, UNKNOWN_MARKET)):
        of_type += [(type(value), getattr(given, name)) for name, value in asdict(usual).items()]
    for kind, value in of_type:
        if not isinstance(value, (int, float) if kind is float else kind):
            raise ValueError(f"{value!r:.80} is no {kind.__name__}")
    # The size of chunks may be any, as it changes no value, and whoever applies the model chooses another.
    numbers = (options.lookback, options.data_fraction, market.tick)
    if not all(isinstance(number, int | float) and 0 < number < LARGEST_FACT for number in numbers):
        raise ValueError("a number that none is")
    # Single trades have bars of 0 seconds.
    if type(facts["bar_seconds"]) is not int or not 0 <= facts["bar_seconds"] < LARGEST_FACT:
        raise ValueError("bars of a length that none is")
    if facts["target"] not in TARGETS.get(options.rows, ()) or options.rth_close not in RTH_CLOSES:
        raise ValueError("rows, a target of them or a close that there are none of")
    if any(getattr(options, name) not in words for name, words in CHOICES.items()):
        raise ValueError("an option that there is none of")
    if "\0" in options.rolls:
        raise ValueError("rolls in a file that no system can have")
    for day in filter(None, (market.first, market.last)):
        # Python also parses week dates, which numpy does not.
        if not DATE.fullmatch(day):
            raise ValueError(f"{day:.80} is no date")
        date.fromisoformat(day)


def load_state(path: Path, model: Network) -> str:
    """Load the weights of a kept state's file into `model` and return the file's SHA-256; UserError as load_model."""
    content = read_bytes(path)
    try:
        _load(model, load_plain(content)["state_dict"])
    except Exception as error:  # as above
        raise UserError(f"{path}: not an intact file of a state of this model", exit_code=1) from error
    return sha256(content)


def _load(model: Network, weights: dict[str, torch.Tensor]) -> None:
    """Set the weights of a model; any error where they do not fit."""
    # A plain dict has no metadata, by which torch could replace the parameters by others of any type.
    model.load_state_dict(dict(weights))


def load_plain(content: bytes) -> Any:
    """Return the tensors and plain values in a file of torch.save; ValueError if it has more values than bytes.

    A tensor may repeat one number without end, and would fill the memory where it is taken for a list.
    """
    document = load_saved(io.BytesIO(content), only_tensors=True)
    left, most = [document], len(content)
    while left:
        value = left.pop()
        inner = values_in(value)
        most -= value.numel() if isinstance(value, torch.Tensor) else len(inner)
        if most < 0:
            raise ValueError("more values than bytes")
        left += inner
    return document


def require_finite(loaded: LoadedModel) -> None:
    """Raise UserError with exit code 1 unless all weights, and the output for a row of zeros, are finite."""
    with torch.no_grad():
        answer = loaded.model(torch.zeros(1, *input_shape(loaded.kind, len(loaded.features))))
    if not all(torch.isfinite(tensor).all() for tensor in (answer, *loaded.model.state_dict().values())):
        raise UserError(f"{loaded.path}: the model has weights that are not finite; train it again", exit_code=1)


def weights_sha256(weights: dict[str, torch.Tensor]) -> str:
    """Return the SHA-256 of all weights, in order: equal on all ranks that are in step."""
    return sha256(b"".join(tensor.numpy().tobytes() for tensor in weights.values()))
