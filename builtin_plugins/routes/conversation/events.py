"""What an answer brings, piece by piece. Protocols write these in their own forms. Plain data."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from core.api import Logprob, Piece


class Begun(msgspec.Struct, frozen=True):
    """The prompt was read."""

    prompt_tokens: int
    cached_tokens: int


class Scored(msgspec.Struct, frozen=True):
    """Tokens with their log-probabilities, in front of the pieces that came of them."""

    token_ids: Sequence[int]
    positions: Sequence[dict[int, Logprob]]


class Ended(msgspec.Struct, frozen=True):
    """The answer is complete."""

    reason: str
    """`stop`, `length` or `tool_calls`."""
    stop: str | None
    """The stop text that ended it."""
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    reasoning_tokens: int
    context_full: bool
    """It is as long as the context allows, and shorter than its client does."""


Event = Begun | Scored | Piece | Ended
