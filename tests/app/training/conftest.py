import numpy as np
import pytest

from vpoc.training.inputs.samples import Samples


def samples_of(inputs, labels, weights=None, window=1):
    """Return samples of one session, one for each row that has a full window."""
    count = len(inputs)
    ends = np.arange(window - 1, count)
    return Samples(
        inputs=inputs,
        ends=ends,
        labels=labels[ends],
        weights=np.ones(len(ends), np.float32) if weights is None else weights[ends],
        dates=np.zeros(len(ends), np.int32),
        window=window,
    )


@pytest.fixture(name="samples_of")
def make_samples():
    """Return the function that makes samples from inputs and labels."""
    return samples_of
