"""Draft-length controller: how many draft tokens of each row are worth verifying.

A step with n more tokens takes longer, and yields as many tokens as are likely to be accepted. The
controller chooses the likeliest draft tokens that maximize tokens per second. If none pay,
speculation pauses for a while.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from builtin_plugins.features.speculation.subtrees import PRIOR_ACCEPTANCE_RATE

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PRIOR_WEIGHT: Final = 2.0
"""Weight of the common acceptance rate in a row's, in verified draft tokens."""
ROW_DECAY: Final = 0.8
"""Factor by which a row's earlier steps count less with each step."""
COMMON_WEIGHT: Final = 32
"""Weight of the earlier common acceptance rate, in verified draft tokens of a step."""
COMMON_DECAY: Final = 1 / 2048
"""Share by which the common acceptance rate returns to the prior with each step."""
MIN_SPEEDUP: Final = 1.03
"""Predicted speedup that draft tokens must reach."""
LINEAR_SIZE: Final = 16
"""Steps of fewer tokens are dominated by fixed costs, so an extra token may cost this much less."""
MIN_SAMPLES: Final = 4
"""Steps of a size before their time is trusted: the first ones include warm-up."""
NUM_SAMPLES: Final = 8
"""Recent steps of a size; the shortest counts."""
TRIAL_S: Final = 0.1
"""Initial trial budget, in seconds."""
TRIAL_SHARE: Final = 0.0025
"""Share of the run time that is added to the trial budget."""
MAX_LOSS_RATIO: Final = 4
"""Cap of a measured loss, relative to the predicted time: beyond it, another process interfered."""


class StepCosts:
    """Step times by number of tokens. The shortest of recent steps counts, as noise only adds."""

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}
        self._trusted: dict[int, float] = {}
        """Seconds by step size."""
        self.token_s = 0.0
        """Lowest time per token of any step; an upper bound of an extra token's cost."""
        self._sizes: Floats = np.zeros(0)
        self._seconds: Floats = np.zeros(0)

    def add_mixed_step(self, num_tokens: int, seconds: float) -> None:
        """Count a step with prefill tokens."""
        self.token_s = min(self.token_s or seconds, seconds / num_tokens)

    def add_decode_step(self, num_tokens: int, seconds: float) -> None:
        """Count a pure decode step."""
        self.token_s = min(self.token_s or seconds, seconds / num_tokens)
        size = _rounded(num_tokens)
        recent = self._recent.setdefault(size, deque(maxlen=NUM_SAMPLES))
        recent.append(seconds)
        if len(recent) >= MIN_SAMPLES and self._trusted.get(size) != (shortest := min(recent)):
            self._trusted[size] = shortest
            self._sizes = np.array(sorted(self._trusted), dtype=np.float64)
            self._seconds = np.array([self._trusted[size] for size in sorted(self._trusted)])

    @property
    def largest(self) -> int:
        """Largest measured step size."""
        return int(self._sizes[-1]) if len(self._sizes) else 0

    def predict(self, num_tokens: Ints) -> Floats | None:
        """Return predicted seconds by step size; None: the smallest size was never measured.

        Interpolates measured sizes, and extrapolates as `lower_bound` does.
        """
        sizes = self._sizes
        if not len(sizes) or sizes[0] > num_tokens[0]:
            return None
        beyond = np.maximum(num_tokens - sizes[-1], 0.0)
        measured = np.interp(num_tokens, sizes, self._seconds)
        seconds: Floats = measured + self._extra_token_s(num_tokens) * beyond
        return seconds

    def lower_bound(self, num_tokens: Ints, first_s: float) -> Floats:
        """Return optimistic seconds by step size, if the first size takes `first_s`."""
        extra = num_tokens - num_tokens[0]
        seconds: Floats = first_s + self._extra_token_s(num_tokens) * extra
        return seconds

    def _extra_token_s(self, num_tokens: Ints) -> float:
        """Return an optimistic cost of an extra token, so that unmeasured sizes are tried."""
        return min(0.5, float(num_tokens[0]) / LINEAR_SIZE) * self.token_s


class DraftLengthController:
    """Chooses the number of draft tokens of the next step."""

    def __init__(
        self,
        num_rows: int,
        max_draft_tokens: int,
        *,
        adaptive: bool = True,
        depths: Ints | None = None,
        num_siblings: Ints | None = None,
    ) -> None:
        """For trees, `depths` and `num_siblings` describe the nodes in order of likelihood.

        `num_siblings`: more likely siblings on the path to the node.
        """
        self._adaptive: Final = adaptive
        self._positions: Final = np.arange(1, max_draft_tokens + 1)
        self._depths: Final = self._positions if depths is None else depths
        self._num_siblings: Final = num_siblings
        self._num_accepted: Final = np.zeros(num_rows)
        self._num_verified: Final = np.zeros(num_rows)
        self._common_rate = PRIOR_ACCEPTANCE_RATE
        """Acceptance rate of all rows."""
        self._trial_s = TRIAL_S
        """Trial budget: seconds that trials may lose."""
        self._trial: tuple[float, float] | None = None
        """Predicted time without draft tokens, and predicted loss, of the running trial."""
        self.costs: Final = StepCosts()

    def add_time(self, seconds: float, steps: int = 1) -> None:
        """Credit `steps` steps of `seconds` each."""
        budget_s = self._trial_s + TRIAL_SHARE * steps * seconds
        self._trial_s = min(budget_s, max(TRIAL_S, seconds))
        decay = 1 - (1 - COMMON_DECAY) ** steps
        self._common_rate += decay * (PRIOR_ACCEPTANCE_RATE - self._common_rate)

    def saving(
        self, num_rows: int, seconds: float, accepted_per_row: float, drafting_s: float
    ) -> float:
        """Return the seconds that a step with draft tokens has saved; negative: lost.

        `seconds`: measured time, of which `drafting_s` went into drafting. The result of a trial
        is 0: its measured loss is debited from the trial budget.
        """
        if self._trial is not None:
            plain_s, predicted_loss_s = self._trial
            loss_s = max(0.0, seconds - plain_s * (1 + accepted_per_row))
            loss_s = min(loss_s, MAX_LOSS_RATIO * predicted_loss_s + drafting_s)
            budget_s = self._trial_s + predicted_loss_s - loss_s
            self._trial_s = min(budget_s, max(TRIAL_S, plain_s))
            self._trial = None
            return 0.0
        plain_s = self.plain_s(num_rows)
        if not plain_s:
            return 0.0
        capped_s = min(seconds, MAX_LOSS_RATIO * plain_s + drafting_s)
        return plain_s * (1 + accepted_per_row) - capped_s

    def plain_s(self, num_rows: int) -> float:
        """Return the predicted time of a step without draft tokens; 0: unknown."""
        seconds = self.costs.predict(np.array([num_rows]))
        return 0.0 if seconds is None else float(seconds[0])

    def reset_row(self, row: int) -> None:
        """Forget a row's acceptance rate, for a new request."""
        self._num_accepted[row] = 0.0
        self._num_verified[row] = 0.0

    def add_verified(self, rows: Ints, verified: Ints, accepted: Ints) -> None:
        """Count verified and accepted draft tokens of rows."""
        self._num_accepted[rows] = self._num_accepted[rows] * ROW_DECAY + accepted
        self._num_verified[rows] = self._num_verified[rows] * ROW_DECAY + verified
        num_accepted = float(accepted.sum())
        num_verified = float(verified.sum())
        surprise = num_accepted - num_verified * self._common_rate
        self._common_rate += surprise / (num_verified + COMMON_WEIGHT)

    def acceptance_rates(self, rows: Ints) -> Floats:
        """Return the estimated acceptance rate of each row."""
        rates: Floats = (self._num_accepted[rows] + PRIOR_WEIGHT * self._common_rate) / (
            self._num_verified[rows] + PRIOR_WEIGHT
        )
        return rates

    def _chances(self, rows: Ints) -> Floats:
        """Return the probability that each draft token is accepted. Falls along each row."""
        rates = self.acceptance_rates(rows)[:, None]
        chances: Floats = rates**self._depths
        if self._num_siblings is not None:
            chances = chances * (1 - rates) ** self._num_siblings
            chances = np.minimum.accumulate(chances, axis=1)
        return chances

    def choose(
        self, rows: Ints, available: Ints, lookup_s: float = 0.0, *, dry_run: bool = False
    ) -> Ints:
        """Return the number of draft tokens of each row, up to `available`.

        `lookup_s`: time to find them, in addition to the step. `dry_run`: starts no trial.
        """
        is_available = self._positions <= np.reshape(available, (-1, 1))
        chances = np.where(is_available, self._chances(rows), 0.0)
        if not self._adaptive:
            chosen: Ints = is_available.sum(axis=1) + np.zeros(len(rows), dtype=np.int64)
            return chosen
        order = np.argsort(-chances, axis=None, kind="stable")[: np.count_nonzero(chances)]
        sizes, excluded = _step_sizes(len(rows), len(order))
        seconds = self.costs.predict(sizes)
        if seconds is None or not len(order):
            return np.zeros(len(rows), dtype=np.int64)
        seconds[1:] += lookup_s
        num_tokens = len(rows) + np.concatenate(([0.0], np.cumsum(chances.ravel()[order])))
        num_tokens[excluded] = 0.0
        speed = num_tokens / seconds
        num_known = int(np.searchsorted(sizes, self.costs.largest, side="right"))
        best_known = _fastest(speed[:num_known])
        best = best_known
        if not best_known or _fastest(speed) != best_known:
            at_least = num_known if best_known else 1
            trial = self._start_trial(
                sizes, seconds, num_tokens, lookup_s, at_least, dry_run=dry_run
            )
            best = trial or best_known
        return np.bincount(order[:best] // len(self._positions), minlength=len(rows))

    def _start_trial(
        self,
        sizes: Ints,
        seconds: Floats,
        num_tokens: Floats,
        lookup_s: float,
        at_least: int,
        *,
        dry_run: bool,
    ) -> int:
        """Return the number of draft tokens of a trial; 0: the budget allows none.

        A trial measures a size that is not known to pay: it was never tried, or another process
        may have slowed it down. It has `at_least` draft tokens, and as many as the trial budget
        allows. Its predicted loss is debited, unless `dry_run`.
        """
        linear_s = self.costs.token_s * np.arange(len(sizes))
        loss_s = np.maximum.accumulate(np.maximum(seconds - seconds[0], linear_s))
        optimistic_s = self.costs.lower_bound(sizes, float(seconds[0]))
        optimistic_s[1:] += lookup_s
        num_affordable = np.searchsorted(loss_s, self._trial_s, side="right")
        best = _fastest((num_tokens / optimistic_s)[:num_affordable])
        if best < at_least:
            return 0
        if not dry_run:
            self._trial_s -= float(loss_s[best])
            self._trial = float(seconds[0]), float(loss_s[best])
        return best


def _fastest(speed: Floats) -> int:
    """Return the number of draft tokens with the highest speed; 0: none is clearly faster."""
    best = int(np.argmax(speed)) if len(speed) else 0
    return best if best and speed[best] >= MIN_SPEEDUP * speed[0] else 0


@lru_cache(maxsize=512)
def _step_sizes(num_rows: int, max_draft_tokens: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return the step sizes with 0 to `max_draft_tokens`, and which of them to avoid.

    The first steps of each size include warm-up, so steps should have few sizes: the rounded ones,
    and any with fewer draft tokens than lie between two of these.
    """
    sizes = num_rows + np.arange(max_draft_tokens + 1)
    steps = np.left_shift(1, np.maximum(0, np.frexp(sizes.astype(np.float64))[1] - 4))
    excluded = (sizes % steps != 0) & (sizes - num_rows >= steps[0])
    for array in (sizes, excluded):
        array.flags.writeable = False  # they are cached
    return sizes, excluded


def _rounded(num_tokens: int) -> int:
    """Return the size class of a step: beyond 16, rounded up to four significant bits."""
    step = 1 << max(0, num_tokens.bit_length() - 4)
    return -(-num_tokens // step) * step
