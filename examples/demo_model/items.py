"""One conversation with its answer, drawn from one side of the split."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
HELD_OUT_OF = 16
"""One in this many keys belongs to the evaluation and is never trained on."""


def held_out(key: str) -> bool:
    """Return whether a key belongs to the evaluation."""
    return hashlib.sha256(key.encode()).digest()[0] % HELD_OUT_OF == 0


@dataclass(slots=True)
class Item:
    """A conversation up to a question, and the message that answers it."""

    skill: str
    keys: tuple[str, ...]
    """Keys that identify the item; all on one side of the split."""
    messages: list[dict[str, Any]]
    answer: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    thinking: bool = True
    """Whether the request enables thinking."""
    train_history: bool = True
    """Whether earlier answers are trained on too."""
    variant: str = ""
    """Line of the evaluation table within the skill."""


class Draw:
    """A random source for one side of the split."""

    def __init__(self, rng: random.Random, evaluation: bool) -> None:
        self.rng = rng
        self.evaluation = evaluation

    def one(self, values: Sequence[T]) -> T:
        """Return one of the values."""
        return values[int(self.rng.random() * len(values))]

    def some(self, values: Sequence[T], count: int) -> list[T]:
        """Return different values in random order."""
        return self.rng.sample(values, count)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.rng.random() < probability

    def number(self, low: int, high: int) -> int:
        """Return an integer, both ends included."""
        return low + int(self.rng.random() * (high - low + 1))

    def own(self, make: Callable[[], T], key: Callable[[T], str] = str) -> T:
        """Return the first value with a key on this side of the split."""
        while True:
            value = make()
            if held_out(key(value)) == self.evaluation:
                return value

    def mine(self, values: Sequence[str], prefix: str) -> list[str]:
        """Return the values of a short list that lie on this side of the split."""
        return [value for value in values if held_out(prefix + value) == self.evaluation]
