"""Messages between the halves of speculative decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

NAME: Final = "speculation"


class Granted(msgspec.Struct, array_like=True, frozen=True):
    """Rows of the step, and the draft tokens granted to each (0 is possible)."""

    rows: list[int]
    counts: list[int]


class Report(msgspec.Struct, array_like=True, frozen=True):
    """Results of a step, and the requested draft lengths, as int32 columns."""

    drafted_rows: bytes = b""
    """Rows with draft tokens in this step."""
    num_drafted: bytes = b""
    """Draft tokens of each of `drafted_rows`."""
    num_accepted: bytes = b""
    """Accepted tokens of each of `drafted_rows`."""
    next_rows: bytes = b""
    """Rows that request draft tokens for the next step."""
    next_counts: bytes = b""
    """Draft tokens requested for each of `next_rows`."""

    @classmethod
    def of(cls, *columns: Sequence[int] | npt.NDArray[np.int64]) -> Report:
        """Return a report of these columns, in field order."""
        return cls(*(np.asarray(column, dtype=np.int32).tobytes() for column in columns))


def column(data: bytes) -> npt.NDArray[np.int32]:
    """Return a column of a report."""
    return np.frombuffer(data, dtype=np.int32)


class DraftStats(msgspec.Struct, array_like=True):
    """Draft statistics of a request."""

    num_steps: int = 0
    """Steps with draft tokens."""
    num_draft_tokens: int = 0
    accepted_per_position: list[int] = []
    """How often the draft token at each position was accepted."""

    def add(self, other: DraftStats) -> None:
        """Add the counts of other steps."""
        self.num_steps += other.num_steps
        self.num_draft_tokens += other.num_draft_tokens
        both = (self.accepted_per_position, other.accepted_per_position)
        size = max(map(len, both))
        padded = [counts + [0] * (size - len(counts)) for counts in both]
        self.accepted_per_position = [sum(pair) for pair in zip(*padded, strict=True)]

    def counts(self) -> Mapping[str, float]:
        """Return the counts by metric; named as in vLLM."""
        prefix = "spec_decode_num_"
        per_position = {
            f"{prefix}accepted_tokens_per_pos/{position}": float(count)
            for position, count in enumerate(self.accepted_per_position)
        }
        return {
            f"{prefix}drafts": float(self.num_steps),
            f"{prefix}draft_tokens": float(self.num_draft_tokens),
            f"{prefix}accepted_tokens": float(sum(self.accepted_per_position)),
            **per_position,
        }
