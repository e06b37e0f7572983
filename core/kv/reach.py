"""How far back a token reads, per spec: the one place that knows what the kinds of layers keep."""

from __future__ import annotations

from core.model_spec.kv import (
    CacheSpec,
    ChunkedLocal,
    CrossAttention,
    RecurrentState,
    SlidingWindow,
)


def first_needed(spec: CacheSpec, position: int) -> int:
    """Return the first position that a token at `position`, or any later one, still reads."""
    if isinstance(spec, SlidingWindow):
        return max(0, position - spec.window + 1)
    if isinstance(spec, ChunkedLocal):
        return position - position % spec.chunk
    if isinstance(spec, RecurrentState):
        return max(0, position - 1)
    return 0


def peak_blocks(spec: CacheSpec, block_size: int, num_tokens: int, max_step_tokens: int) -> int:
    """Return the most blocks one sequence of `num_tokens` holds at a time, computed in steps of a
    limited size.

    A local spec holds what its first token of a step reads back to, and the step itself, wherever
    the block boundaries fall. A cross spec holds its longest input, whatever the sequence.
    """
    if isinstance(spec, CrossAttention):
        return -(-spec.max_len // block_size)
    whole = -(-num_tokens // block_size)
    if isinstance(spec, SlidingWindow):
        behind = spec.window - 1
    elif isinstance(spec, ChunkedLocal):
        behind = spec.chunk - 1
    elif isinstance(spec, RecurrentState):
        behind = 1
    else:
        return whole
    span = behind + min(max_step_tokens, num_tokens)
    return min(whole, (span + block_size - 2) // block_size + 1)
