"""What the halves of speculation tell each other: bytes to the kernel, which carries them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

NAME: Final = "speculation"


class Granted(msgspec.Struct, array_like=True, frozen=True):
    """Rows of the step, and how many tokens each guesses, none perhaps."""

    rows: list[int]
    counts: list[int]


class Report(msgspec.Struct, array_like=True, frozen=True):
    """What a step has shown: columns of int32, so that nobody looks at rows one by one."""

    rows: bytes = b""
    """Rows that guessed in it ..."""
    drafted: bytes = b""
    """... how many tokens ..."""
    accepted: bytes = b""
    """... and how many of those were right."""
    wanting: bytes = b""
    """Rows that shall guess in the next step ..."""
    wanted: bytes = b""
    """... and how many tokens each."""

    @classmethod
    def of(cls, *columns: Sequence[int] | npt.NDArray[np.int64]) -> Report:
        """Return a report of these columns, in the order of its fields."""
        return cls(*(np.asarray(column, dtype=np.int32).tobytes() for column in columns))


def column(numbers: bytes) -> npt.NDArray[np.int32]:
    """Return a column of a report."""
    return np.frombuffer(numbers, dtype=np.int32)


class Outcome(msgspec.Struct, array_like=True):
    """What is counted of a request."""

    drafts: int = 0
    """Steps in which tokens of it were guessed."""
    tokens: int = 0
    """Tokens that were guessed."""
    right: list[int] = []
    """How often the first guess was right, the first two, and so on."""

    def add(self, other: Outcome) -> None:
        """Take in what was counted elsewhere."""
        self.drafts += other.drafts
        self.tokens += other.tokens
        size = max(len(self.right), len(other.right))
        padded = [right + [0] * (size - len(right)) for right in (self.right, other.right)]
        self.right = [sum(pair) for pair in zip(*padded, strict=True)]

    def counts(self) -> Mapping[str, float]:
        """Return what metrics count of it; names as in vLLM."""
        prefix = "spec_decode_num_"
        places = {
            f"{prefix}accepted_tokens_per_pos/{place}": float(n)
            for place, n in enumerate(self.right)
        }
        return {
            f"{prefix}drafts": float(self.drafts),
            f"{prefix}draft_tokens": float(self.tokens),
            f"{prefix}accepted_tokens": float(sum(self.right)),
            **places,
        }
