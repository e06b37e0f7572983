"""A request as its user knows it, while it is followed: one prompt, n sequences, and what has been
shown of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from core.text.sequence import GrowingSequence
from core.types import CompletionOutput, PositionLogprobs, SamplingParams
from core.types.pooling import Pooled


@dataclass(slots=True)
class ClientRequest:
    """A request as its user knows it: one prompt, n sequences."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    """What of it was left by truncation."""
    shown: dict[str, Any]
    """Further fields of its outputs, which features fill."""
    sampling: SamplingParams
    sequences: dict[str, GrowingSequence]
    """By engine request id."""
    arrival_s: float
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int | None = None
    started_s: float | None = None
    """When a step first computed it."""
    first_token_s: float | None = None
    error: str | None = None
    pooled: Pooled | None = None
    num_open: int = 0
    """Sequences that have not ended."""
    streams: bool = False
    """It is told what is new, one sequence at a time; else all there is, in the end or all along.
    """
    offer: Callable[[CompletionOutput], bool] | None = None
    """Where it streams, is shown what is new of a sequence, but for its end, and says whether that
    need not be told any more.
    """
