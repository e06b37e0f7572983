"""A client's request in progress, as outputs and metrics read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from core.frontend.text.sequence import OutputSequence
from core.types import CompletionOutput, PositionLogprobs, SamplingParams
from core.types.pooling import Pooled


@dataclass(slots=True)
class ClientRequest:
    """A client's request in progress: one prompt, n sequences."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    """Prompt tokens after truncation."""
    extra_fields: dict[str, Any]
    """Additional output fields, set by features."""
    sampling: SamplingParams
    sequences: dict[str, OutputSequence]
    """Sequences by engine request id."""
    arrival_s: float
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int | None = None
    started_s: float | None = None
    """Time of the first step that computed it."""
    first_token_s: float | None = None
    engine: int = 0
    """Rank of its engine."""
    error: str | None = None
    pooled: Pooled | None = None
    num_open: int = 0
    """Number of unfinished sequences."""
    streams: bool = False
    """True: outputs are deltas of one sequence at a time."""
    try_deliver: Callable[[CompletionOutput], bool] | None = None
    """Receives deltas of unfinished sequences first; True: consumed, no
    output follows.
    """
