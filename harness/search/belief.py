"""A noisy binary search for the place where runs begin to fail, although they do not fail every time. Pure.

Bayes' rule updates the probability of every pair of place and failure rate. The next run is made at the place where its
outcome is expected to give the most bits about the place (Horstein 1963, "Sequential transmission using noiseless
feedback"; Burnashev and Zigangirov 1974, "An interval estimation problem for controlled observations").
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# The failure rates that are distinguished. The prior assumes that half of all failures happen every time.
RATES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.99)
RATE_PRIOR = (*(0.5 / (len(RATES) - 1),) * (len(RATES) - 1), 0.5)
# The probability that a run fails in this way although it contains nothing that causes the failure.
FALSE_ALARMS = 0.005


class Belief:
    """Probabilities of hypotheses, each a kind and a place: a run can fail if it includes everything up to the place.

    A hypothesis has the index `kind * places + place`; the last one is that nothing fails. Neither the `weights` of the
    hypotheses nor the weights `rates` of RATES need to add up to 1.
    """

    def __init__(self, weights: Sequence[float], kinds: int = 1, rates: Sequence[float] = RATE_PRIOR) -> None:
        import numpy as np  # noqa: PLC0415 - most commands do without

        self.kinds, self.places = kinds, (len(weights) - 1) // kinds
        self._rates = np.array(RATES)
        self._joint: Floats = np.outer(weights, np.array(rates) / sum(rates))
        self._joint /= self._joint.sum()

    @property
    def probabilities(self) -> "Floats":
        """The probability of each hypothesis."""
        known: Floats = self._joint.sum(axis=1)
        return known

    def rates_of(self, hypothesis: int) -> tuple[float, ...]:
        """The weights of RATES under a hypothesis."""
        return tuple((self._joint[hypothesis] / self._joint[hypothesis].sum()).tolist())

    def learn(self, failing: "Any", *, passed: bool) -> None:
        """Update with a run that can only fail under the hypotheses `failing` (one index or several)."""
        import numpy as np  # noqa: PLC0415

        likelihood = np.full(self._joint.shape, 1 - FALSE_ALARMS if passed else FALSE_ALARMS)
        likelihood[failing] = 1 - self._rates if passed else self._rates
        self._joint *= likelihood
        self._joint /= self._joint.sum()

    def up_to(self, place: int) -> "Any":
        """Return the hypotheses under which a run of everything up to a place fails."""
        import numpy as np  # noqa: PLC0415

        return np.concatenate([np.arange(place + 1) + kind * self.places for kind in range(self.kinds)])

    def best_place(self) -> tuple[int, float]:
        """Return the best place to run up to, and how many bits about the hypothesis that run is expected to give."""
        gains = self._gains(*(self._folded(values).cumsum() for values in self._terms()))
        best = int(gains.argmax())
        return best, float(gains[best])

    def gain_of(self, failing: list[int]) -> float:
        """Return how many bits a run is expected to give that fails only under these hypotheses."""
        return float(self._gains(*(values[failing].sum() for values in self._terms())))

    def _terms(self) -> tuple["Floats", "Floats", "Floats"]:
        """Return of each hypothesis its probability, that with a failure, and the bits that a run leaves open."""
        probability, failing = self.probabilities, self._joint @ self._rates
        return probability, failing, probability * _entropy(failing / probability.clip(1e-300))

    def _folded(self, values: "Floats") -> "Floats":
        folded: Floats = values[:-1].reshape(self.kinds, self.places).sum(axis=0)
        return folded

    def _gains(self, probability: "Any", failing: "Any", open_: "Any") -> "Any":
        """Return the mutual information of outcome and hypothesis; `probability` is the sum of those that fail."""
        others = 1 - probability
        return _entropy(failing + others * FALSE_ALARMS) - open_ - others * _entropy(FALSE_ALARMS)


def _entropy(probability: "Any") -> "Any":
    """Return the entropy of a yes-no outcome with this probability, in bits."""
    import numpy as np  # noqa: PLC0415

    inside = np.clip(probability, 1e-12, 1 - 1e-12)
    return -(inside * np.log2(inside) + (1 - inside) * np.log2(1 - inside))
