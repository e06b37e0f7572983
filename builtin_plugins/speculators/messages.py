"""What the halves of speculation tell each other: bytes to the kernel, which carries them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

NAME: Final = "speculation"


class Granted(msgspec.Struct, array_like=True, frozen=True):
    """Rows that guess in the step, and how many tokens each."""

    rows: list[int]
    counts: list[int]


class Report(msgspec.Struct, array_like=True, frozen=True):
    """What a step has shown."""

    rows: list[int] = []
    """Rows that guessed in it ..."""
    drafted: list[int] = []
    """... how many tokens ..."""
    accepted: list[int] = []
    """... and how many of those were right."""
    wanting: list[int] = []
    """Rows that shall guess in the next step ..."""
    wanted: list[int] = []
    """... and how many tokens each."""


class Outcome(msgspec.Struct, array_like=True):
    """What is counted of a request."""

    drafts: int = 0
    """Steps in which tokens of it were guessed."""
    tokens: int = 0
    """Tokens that were guessed."""
    right: list[int] = []
    """How often the first guess was right, the first two, and so on."""

    def count(self, drafted: int, accepted: int) -> None:
        """Take in one step."""
        self.drafts += 1
        self.tokens += drafted
        if accepted > len(self.right):
            self.right = self.right + [0] * (accepted - len(self.right))
        for place in range(accepted):
            self.right[place] += 1

    def counts(self) -> Mapping[str, float]:
        """Return what metrics count of it; names as in vLLM."""
        prefix = "spec_decode_num_"
        places = {f"{prefix}accepted_tokens_per_pos/{place}": float(n) for place, n in enumerate(self.right)}
        return {
            f"{prefix}drafts": float(self.drafts),
            f"{prefix}draft_tokens": float(self.tokens),
            f"{prefix}accepted_tokens": float(sum(self.right)),
            **places,
        }
