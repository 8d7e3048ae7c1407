"""Train with Lightning as `vpoc train` does, with validation and checkpoints, for benchmarks/training.py.

`training_lightning.py samples CSV FILE`, in the app's interpreter, writes the samples that `vpoc train` makes of CSV.
`training_lightning.py train FILE FOLDER`, in the peers' interpreter, trains on them; checkpoints go to FOLDER.
"""

import os
import sys
from pathlib import Path
from typing import Any

EPOCHS, BATCH = 3, 256
HIDDEN = (32, 16)
"""The app's default."""


def samples(csv: Path, file: Path) -> None:
    """Write the training and validation samples of rows per bar."""
    import numpy as np  # noqa: PLC0415

    from vpoc.data.load import load_bars  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.features.build import build_features  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.features.feature_options import FeatureOptions  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.features.targets import DEFAULT_TARGET  # type: ignore[import-not-found]  # noqa: PLC0415
    from vpoc.training.inputs.samples import split  # type: ignore[import-not-found]  # noqa: PLC0415

    features = build_features(load_bars(csv), FeatureOptions(rows="bar"))
    found = split(features, DEFAULT_TARGET["bar"], 1, inner=False)
    arrays = {}
    for name, part in (("train", found.train), ("validation", found.validation)):
        arrays[f"{name}_inputs"], arrays[f"{name}_labels"] = part.inputs[part.ends], part.labels
    np.savez(file, **arrays)


def train(file: Path, folder: Path) -> None:
    """Train on one core, with validation and a checkpoint after every epoch, but without progress displays."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import numpy as np  # noqa: PLC0415
    import pytorch_lightning  # type: ignore[import-not-found]  # noqa: PLC0415
    import torch  # type: ignore[import-not-found]  # noqa: PLC0415
    from torch import nn  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
    from torch.nn import functional  # type: ignore[import-not-found]  # noqa: PLC0415
    from torch.utils.data import DataLoader, TensorDataset  # type: ignore[import-not-found]  # noqa: PLC0415

    torch.set_num_threads(1)
    arrays = np.load(file)

    def loader(name: str, size: int, *, mixed: bool) -> Any:
        tensors = (torch.from_numpy(arrays[f"{name}_{part}"]) for part in ("inputs", "labels"))
        return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=mixed)

    class Module(pytorch_lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            first, second = HIDDEN
            wide = arrays["train_inputs"].shape[1]
            relu = nn.ReLU
            layers = nn.Linear(wide, first), relu(), nn.Linear(first, second), relu(), nn.Linear(second, 1)
            self.model = nn.Sequential(*layers)

        def loss(self, batch: Any) -> Any:
            inputs, labels = batch
            return functional.binary_cross_entropy_with_logits(self.model(inputs).squeeze(1), labels)

        def training_step(self, batch: Any, _number: int) -> Any:
            return self.loss(batch)

        def validation_step(self, batch: Any, _number: int) -> None:
            self.log("validation", self.loss(batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    keeping = pytorch_lightning.callbacks.ModelCheckpoint(dirpath=folder, save_last=True)
    trainer = pytorch_lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=1,
        callbacks=[keeping],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    # Like the app, validate on larger batches than those of training.
    trainer.fit(Module(), loader("train", BATCH, mixed=True), loader("validation", 4 * BATCH, mixed=False))


if __name__ == "__main__":
    {"samples": samples, "train": train}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
