"""States that a training keeps from before some of its steps: where they must be, and which is replayed. Pure.

The app cuts a training into equal parts and keeps one state in each part (`vpoc.training.kept_states`, which draws the
same steps). The nonce decides which step, so that states of an earlier run have other steps.
"""

from collections import Counter
from hashlib import sha256
from secrets import choice

from harness.evidence.files.app_files import KeptState, Training

PER_EPOCH = 3
MOST_STATES = 30
MOST_BYTES = 128 << 20
BYTES_OF_A_PARAMETER = 4


def drawn_steps(told: Training, nonce: str | None) -> list[int]:
    """Return the steps, counted from 1, before which a training keeps a state, in order, up to its last step."""
    steps = told.steps_per_epoch * told.epochs_requested
    by_size = max(PER_EPOCH, MOST_BYTES // (BYTES_OF_A_PARAMETER * max(told.model.parameters, 1)))
    parts = min(PER_EPOCH * told.epochs_requested, MOST_STATES, by_size, steps)
    drawn = []
    for part in range(parts):
        first, end = steps * part // parts + 1, steps * (part + 1) // parts + 1
        word = sha256(f"{nonce} {told.model_kind} {part}".encode()).hexdigest()[:16]
        drawn.append(first + int(word, 16) % (end - first))
    return [step for step in drawn if step <= told.steps_done]


def wrong_states(told: Training, nonce: str | None, resumed: int) -> tuple[int, ...]:
    """Return the steps with a wrong number of states: there must be one before each drawn step, and none elsewhere.

    `resumed`: the number of steps done before the run began; their states may be missing.
    """
    drawn = Counter(drawn_steps(told, nonce))
    kept = Counter(state.step for state in told.states)
    return tuple(sorted({*(kept - drawn), *(step for step in drawn - kept if step > resumed)}))


def pick(told: Training) -> KeptState | None:
    """Return the state from which a step is replayed, drawn so that the app cannot know it; None if it kept none."""
    made = [state for state in told.states if state.step <= told.steps_done]
    return choice(made) if made else None
