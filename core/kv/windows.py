"""Attention windows: which earlier positions a token reads, per KV cache
spec.
"""

from __future__ import annotations

from core.model_spec.kv import (
    CacheSpec,
    ChunkedLocal,
    CrossAttention,
    RecurrentState,
    SlidingWindow,
)


def first_visible_position(spec: CacheSpec, position: int) -> int:
    """Return the first position that the token at `position`, or any later
    token, reads.
    """
    if isinstance(spec, SlidingWindow):
        return max(0, position - spec.window + 1)
    if isinstance(spec, ChunkedLocal):
        return position - position % spec.chunk
    if isinstance(spec, RecurrentState):
        return max(0, position - 1)
    return 0


def peak_blocks(spec: CacheSpec, block_size: int, num_tokens: int, max_step_tokens: int) -> int:
    """Return the maximum of blocks that a sequence of `num_tokens` holds at
    any time.

    A windowed spec holds the window of a step's first token and the step itself, for
    any alignment to blocks. A cross-attention spec holds its longest input.
    """
    if isinstance(spec, CrossAttention):
        return -(-spec.max_len // block_size)
    whole = -(-num_tokens // block_size)
    if isinstance(spec, SlidingWindow):
        history = spec.window - 1
    elif isinstance(spec, ChunkedLocal):
        history = spec.chunk - 1
    elif isinstance(spec, RecurrentState):
        history = 1
    else:
        return whole
    span = history + min(max_step_tokens, num_tokens)
    return min(whole, (span + block_size - 2) // block_size + 1)
