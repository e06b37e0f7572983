"""How many tokens are worth guessing: from what steps of so many tokens took, and how often each
row's guesses were right.

A step of n tokens more takes longer, and brings as many tokens as are likely to be right. Those
guesses are made, most likely ones first, that bring the most tokens in a second; where none do,
speculation rests for a while.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LIKELY: Final = 0.7
"""Assumed share of right guesses of a request of which none was checked, as long as nothing else is
known.
"""
DOUBT: Final = 2.0
"""As many checked guesses count as much as that assumption."""
MEMORY: Final = 0.8
"""What earlier steps of a row count, against the last one."""
EVIDENCE: Final = 32
"""As many checked guesses of a step, of whatever rows, count as much as what was known of all of
them before.
"""
FADING: Final = 1 / 2048
"""Share of what is known of all that is forgotten with each step, so that guesses are tried again
some time.
"""
MARGIN: Final = 1.03
"""So much faster guesses must promise to be."""
SHARED: Final = 16
"""Of a step of fewer tokens most is what any step takes; so many times as cheap a token more may be
where there is one.
"""
TRIALS: Final = 4
"""Steps of a size before what they took is believed: the first of them prepare for the others."""
KEPT: Final = 8
"""Steps of a size, the last ones, of which the shortest counts."""
TRIAL_S: Final = 0.1
"""Time that trials of sizes may have lost from the start, ..."""
TRIAL_SHARE: Final = 0.0025
"""... and for each second of steps; it is saved up to as much as a step takes, so that large models
are tried, too.
"""
MISJUDGED: Final = 4
"""So many times what was reckoned a trial, or a step, may count: of longer ones it is another
process that made them so.
"""


class Costs:
    """What steps took, by their number of tokens: the shortest of the last few, since whatever
    disturbs makes them longer.
    """

    def __init__(self) -> None:
        self._last: dict[int, deque[float]] = {}
        self._known: dict[int, float] = {}
        """By size, what is believed."""
        self.token_s = 0.0
        """What a token took at least, all else of its step included: one more in a step takes no
        longer.
        """
        self._sizes: Floats = np.zeros(0)
        self._seconds: Floats = np.zeros(0)

    def take_prompts(self, num_tokens: int, seconds: float) -> None:
        """Take in a step that computes prompts, too."""
        self.token_s = min(self.token_s or seconds, seconds / num_tokens)

    def take(self, num_tokens: int, seconds: float) -> None:
        """Take in a step in which rows decode."""
        self.token_s = min(self.token_s or seconds, seconds / num_tokens)
        size = _rounded(num_tokens)
        last = self._last.setdefault(size, deque(maxlen=KEPT))
        last.append(seconds)
        if len(last) >= TRIALS and self._known.get(size) != (least := min(last)):
            self._known[size] = least
            self._sizes = np.array(sorted(self._known), dtype=np.float64)
            self._seconds = np.array([self._known[size] for size in sorted(self._known)])

    @property
    def largest(self) -> int:
        """Return the most tokens of which it is known what they take."""
        return int(self._sizes[-1]) if len(self._sizes) else 0

    def of(self, num_tokens: Ints) -> Floats | None:
        """Return the seconds that steps of so many tokens are likely to take; None where nothing is
        known of them.

        Between known sizes it grows evenly, beyond the largest as `at_least` says.
        """
        sizes = self._sizes
        seconds = self._seconds
        if not len(sizes) or sizes[0] > num_tokens[0]:
            return None
        beyond = np.maximum(num_tokens - sizes[-1], 0.0)
        likely: Floats = np.interp(num_tokens, sizes, seconds) + self._more_s(num_tokens) * beyond
        return likely

    def at_least(self, num_tokens: Ints, first_s: float) -> Floats:
        """Return the seconds that they take at the best, if the first takes `first_s`."""
        likely: Floats = first_s + self._more_s(num_tokens) * (num_tokens - num_tokens[0])
        return likely

    def _more_s(self, num_tokens: Ints) -> float:
        """Return what a token more takes, of which nothing is known: half of the cheapest one or
        less, so that a size is tried.
        """
        return min(0.5, float(num_tokens[0]) / SHARED) * self.token_s


class Pace:
    """Chooses the guesses of the next step."""

    def __init__(
        self,
        num_rows: int,
        most: int,
        *,
        adaptive: bool = True,
        depths: Ints | None = None,
        behind: Ints | None = None,
    ) -> None:
        """Of a tree's nodes, likeliest first, `depths` and `behind` say how deep each is and how
        many likelier siblings its way passes.
        """
        self._adaptive: Final = adaptive
        self._places: Final = np.arange(1, most + 1)
        self._depths: Final = self._places if depths is None else depths
        self._behind: Final = behind
        self._right: Final = np.zeros(num_rows)
        self._checked: Final = np.zeros(num_rows)
        self._likely = LIKELY
        self._trial_s = TRIAL_S
        """Time that may be lost in trials."""
        self._trying: tuple[float, float] | None = None
        """Of the trial under way: what the step would take without it, and what it is reckoned to
        lose.
        """
        self.costs: Final = Costs()

    def passed(self, seconds: float, steps: int = 1) -> None:
        """Note that so many steps have taken about so long each."""
        self._trial_s = min(self._trial_s + TRIAL_SHARE * steps * seconds, max(TRIAL_S, seconds))
        self._likely += (1 - (1 - FADING) ** steps) * (LIKELY - self._likely)

    def tried(self, num_rows: int, seconds: float, gained: float, guessing_s: float) -> float:
        """Return how much sooner a step with guesses brought its tokens than steps without would
        have; less than 0: later.

        It has taken `seconds`, `guessing_s` of it to make the guesses, and brought each row
        `gained` tokens more than one, on average. Nothing is said of a trial, which has an account
        of its own: not what was reckoned counts, but what it has lost.
        """
        if self._trying is not None:
            plain_s, reckoned_s = self._trying
            lost_s = min(
                max(0.0, seconds - plain_s * (1 + gained)), MISJUDGED * reckoned_s + guessing_s
            )
            self._trial_s = min(self._trial_s + reckoned_s - lost_s, max(TRIAL_S, plain_s))
            self._trying = None
            return 0.0
        plain_s = self.plain_s(num_rows)
        return (
            plain_s * (1 + gained) - min(seconds, MISJUDGED * plain_s + guessing_s)
            if plain_s
            else 0.0
        )

    def plain_s(self, num_rows: int) -> float:
        """Return what a step of these rows takes without guesses; 0 where it is not known."""
        seconds = self.costs.of(np.array([num_rows]))
        return 0.0 if seconds is None else float(seconds[0])

    def entered(self, row: int) -> None:
        """Another request has a row."""
        self._right[row] = self._checked[row] = 0.0

    def verified(self, rows: Ints, checked: Ints, accepted: Ints) -> None:
        """Take in how many guesses of rows were right, of those that behind right ones were looked
        at.
        """
        self._right[rows] = self._right[rows] * MEMORY + accepted
        self._checked[rows] = self._checked[rows] * MEMORY + checked
        right = float(accepted.sum())
        num_checked = float(checked.sum())
        self._likely += (right - num_checked * self._likely) / (num_checked + EVIDENCE)

    def likely(self, rows: Ints) -> Floats:
        """Return how likely each row's next guess is right."""
        shares: Floats = (self._right[rows] + DOUBT * self._likely) / (self._checked[rows] + DOUBT)
        return shares

    def _chances(self, rows: Ints) -> Floats:
        """Return how likely each guess of rows brings a token; none more than one before it,
        without which it is not made.
        """
        likely = self.likely(rows)[:, None]
        chances: Floats = likely**self._depths
        if self._behind is not None:
            chances = np.minimum.accumulate(chances * (1 - likely) ** self._behind, axis=1)
        return chances

    def choose(
        self, rows: Ints, ready: Ints, looking_s: float = 0.0, *, pretend: bool = False
    ) -> Ints:
        """Return how many guesses each of `rows` shall check in a step of all of them; at most as
        many as are `ready`.

        `looking_s` is what finding them takes, beside the step. With `pretend`, nothing follows
        from it.
        """
        there = self._places <= np.reshape(ready, (-1, 1))
        chances = np.where(there, self._chances(rows), 0.0)
        if not self._adaptive:
            chosen: Ints = there.sum(axis=1) + np.zeros(len(rows), dtype=np.int64)
            return chosen
        order = np.argsort(-chances, axis=None, kind="stable")[: np.count_nonzero(chances)]
        sizes, odd = _sizes(len(rows), len(order))
        seconds = self.costs.of(sizes)
        if seconds is None or not len(order):
            return np.zeros(len(rows), dtype=np.int64)
        seconds[1:] += looking_s
        tokens = len(rows) + np.concatenate(([0.0], np.cumsum(chances.ravel()[order])))
        tokens[odd] = 0.0
        speed = tokens / seconds
        num_known = int(np.searchsorted(sizes, self.costs.largest, side="right"))
        best = known = _best(speed[:num_known])
        if not known or _best(speed) != known:
            least = num_known if known else 1
            best = (
                self._trial(sizes, seconds, tokens, looking_s, least, counted=not pretend) or known
            )
        return np.bincount(order[:best] // len(self._places), minlength=len(rows))

    def _trial(
        self,
        sizes: Ints,
        seconds: Floats,
        tokens: Floats,
        looking_s: float,
        least: int,
        *,
        counted: bool,
    ) -> int:
        """Return how many guesses to check in order to learn what that takes; 0: no time may be
        lost at present.

        By what is known nothing pays, but it may have been another process that made steps long; or
        it is a size that was not tried yet. There are as many as may lose their time, `least` or
        more. With `counted` it will be done, and that is taken off.
        """
        lost_s = np.maximum.accumulate(
            np.maximum(seconds - seconds[0], self.costs.token_s * np.arange(len(sizes)))
        )
        least_s = self.costs.at_least(sizes, float(seconds[0]))
        least_s[1:] += looking_s
        best = _best((tokens / least_s)[: np.searchsorted(lost_s, self._trial_s, side="right")])
        if best < least:
            return 0
        if counted:
            self._trial_s -= float(lost_s[best])
            self._trying = float(seconds[0]), float(lost_s[best])
        return best


def _best(speed: Floats) -> int:
    """Return the number of guesses with the highest speed; 0 where none is clearly faster than no
    guess.
    """
    best = int(np.argmax(speed)) if len(speed) else 0
    return best if best and speed[best] >= MARGIN * speed[0] else 0


@lru_cache(maxsize=512)
def _sizes(first: int, more: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return the sizes of a step without guesses and of those with 1 to `more`; and which of them
    no step should have.

    The first steps of a size prepare for the others, so there are to be few sizes: those that are
    counted, and with less guesses than lie between two of these, any.
    """
    sizes = first + np.arange(more + 1)
    steps = np.left_shift(1, np.maximum(0, np.frexp(sizes.astype(np.float64))[1] - 4))
    odd = (sizes % steps != 0) & (sizes - first >= steps[0])
    for each in (sizes, odd):
        each.flags.writeable = False  # they are kept
    return sizes, odd


def _rounded(num_tokens: int) -> int:
    """Return the size that steps of so many tokens are counted under: the first three binary digits
    beyond 16.
    """
    step = 1 << max(0, num_tokens.bit_length() - 4)
    return -(-num_tokens // step) * step
