"""What guesses have saved beside what they, and looks in vain, have cost. Knows neither rows nor
what is guessed.

What steps will take is reckoned from the shortest of the last few; this goes by what they took. So
it finds out what no forecast does, and bounds what speculation may lose: what it has saved of late,
and a four-hundredth of the time.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.0025
"""Of all time that may be lost."""
MOST_S: Final = 0.02
"""As much of what was saved is kept, and is there at the start; or ..."""
MOST_STEPS: Final = 8
"""... so many steps, where these are long: a few wrong guesses say little."""
LONGEST_REST: Final = 256
"""Steps."""


class Balance:
    """Seconds that may be lost."""

    def __init__(self) -> None:
        self._left_s = self._most_s = MOST_S

    @property
    def is_spent(self) -> bool:
        """Say whether nothing may be lost at present."""
        return self._left_s < 0

    def passed(self, step_s: float, steps: int = 1) -> None:
        """Note that so many steps have taken so long each."""
        self._add(SHARE * steps * step_s)

    def saved(self, seconds: float, plain_s: float) -> None:
        """Note that a step with guesses has brought its tokens so much sooner; less than 0: later.

        Without any it would have taken `plain_s`.
        """
        most_s = max(self._most_s, MOST_STEPS * plain_s)
        self._left_s += most_s - self._most_s  # what is there at the start
        self._most_s = most_s
        self._add(seconds)

    def spent(self, seconds: float) -> None:
        """Note that so long was spent in vain."""
        self._left_s -= seconds

    def rest(self, step_s: float) -> int:
        """Return for how many steps nothing may be lost."""
        return int(min(LONGEST_REST, max(0.0, -self._left_s) / (SHARE * step_s)))

    def _add(self, seconds: float) -> None:
        self._left_s = min(self._left_s + seconds, self._most_s)
