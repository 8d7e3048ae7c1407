"""A noisy binary search: where runs begin to fail, by runs that do not fail every time. Pure.

The probability of every pair of place and failure rate is kept by Bayes' rule, and the next run is made where its
outcome is expected to tell most bits of the place (Horstein 1963, "Sequential transmission using noiseless feedback";
Burnashev and Zigangirov 1974, "An interval estimation problem for controlled observations").
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# The rates that are told apart. Half of what crashes is taken to do so every time.
RATES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.99)
RATE_PRIOR = (*(0.5 / (len(RATES) - 1),) * (len(RATES) - 1), 0.5)
# How often a run fails in the same way that has nothing in it of what fails.
FALSE_ALARMS = 0.005


class Belief:
    """Probabilities of hypotheses, each a kind and a place: what fails is complete at that place, and not before.

    Hypothesis `kind * places + place`; the last one is that nothing fails. `weights` of the hypotheses and `rates` of
    RATES need not add up to 1.
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
        """Take in a run that fails, at the rate, under the hypotheses `failing` (an index or several) alone."""
        import numpy as np  # noqa: PLC0415

        likelihood = np.full(self._joint.shape, 1 - FALSE_ALARMS if passed else FALSE_ALARMS)
        likelihood[failing] = 1 - self._rates if passed else self._rates
        self._joint *= likelihood
        self._joint /= self._joint.sum()

    def up_to(self, place: int) -> "Any":
        """Return the hypotheses under which all up to a place fails."""
        import numpy as np  # noqa: PLC0415

        return np.concatenate([np.arange(place + 1) + kind * self.places for kind in range(self.kinds)])

    def best_place(self) -> tuple[int, float]:
        """Return the place up to which a run tells most, and how many bits of the hypothesis it is expected to tell."""
        gains = self._gains(*(self._folded(values).cumsum() for values in self._terms()))
        best = int(gains.argmax())
        return best, float(gains[best])

    def gain_of(self, failing: list[int]) -> float:
        """Return how many bits a run is expected to tell that fails under these hypotheses alone."""
        return float(self._gains(*(values[failing].sum() for values in self._terms())))

    def _terms(self) -> tuple["Floats", "Floats", "Floats"]:
        """Of each hypothesis: its probability, that with a failure, and the bits that a run leaves open under it."""
        probability, failing = self.probabilities, self._joint @ self._rates
        return probability, failing, probability * _entropy(failing / probability.clip(1e-300))

    def _folded(self, values: "Floats") -> "Floats":
        folded: Floats = values[:-1].reshape(self.kinds, self.places).sum(axis=0)
        return folded

    def _gains(self, probability: "Any", failing: "Any", open_: "Any") -> "Any":
        """The mutual information of outcome and hypothesis, where hypotheses of that probability fail."""
        others = 1 - probability
        return _entropy(failing + others * FALSE_ALARMS) - open_ - others * _entropy(FALSE_ALARMS)


def _entropy(probability: "Any") -> "Any":
    """Return the entropy of yes and no, in bits."""
    import numpy as np  # noqa: PLC0415

    inside = np.clip(probability, 1e-12, 1 - 1e-12)
    return -(inside * np.log2(inside) + (1 - inside) * np.log2(1 - inside))
