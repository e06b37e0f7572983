"""Loss budget: bounds the time that speculation may lose.

`DraftLengthController` predicts step times from the shortest recent steps. The budget counts
measured times instead, so it notices what the prediction misses. It allows recent savings plus
1/400 of the run time to be lost.
"""

from __future__ import annotations

from typing import Final

LOSS_SHARE: Final = 0.0025
"""Share of the run time that may be lost."""
MIN_CAPACITY_S: Final = 0.02
"""Initial budget, and upper bound of saved-up time, in seconds."""
MIN_CAPACITY_STEPS: Final = 8
"""The same in steps, for slow models: few rejected draft tokens prove little."""
MAX_PAUSE: Final = 256
"""Longest pause, in steps."""


class LossBudget:
    """Seconds that speculation may still lose."""

    def __init__(self) -> None:
        self._left_s = MIN_CAPACITY_S
        self._capacity_s = MIN_CAPACITY_S

    @property
    def is_spent(self) -> bool:
        """True if no time may be lost at present."""
        return self._left_s < 0

    def add_time(self, step_s: float, steps: int = 1) -> None:
        """Credit `steps` steps of `step_s` each."""
        self._add(LOSS_SHARE * steps * step_s)

    def add_saving(self, seconds: float, plain_s: float) -> None:
        """Credit the time that a step with draft tokens saved; negative: it lost time.

        `plain_s`: predicted time of the step without draft tokens.
        """
        capacity_s = max(self._capacity_s, MIN_CAPACITY_STEPS * plain_s)
        self._left_s += capacity_s - self._capacity_s  # a larger capacity starts full
        self._capacity_s = capacity_s
        self._add(seconds)

    def spend(self, seconds: float) -> None:
        """Debit time that was spent without any benefit."""
        self._left_s -= seconds

    def pause(self, step_s: float) -> int:
        """Return the number of steps until time may be lost again."""
        return int(min(MAX_PAUSE, max(0.0, -self._left_s) / (LOSS_SHARE * step_s)))

    def _add(self, seconds: float) -> None:
        self._left_s = min(self._left_s + seconds, self._capacity_s)
