"""Tokens that see ahead in their span, such as those of an image, for backends without such a mask.

The backend computes the step as usual, which also writes all keys. The tokens of spans are then
computed again over the cache, and replace the causal result.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from builtin_plugins.attention_backends.common.dense import attend_dense, first_visible
from core.model_spec.attention_params import AttentionParams, LookAheadSpan

MAX_SCORES: Final = 1 << 24
"""Maximum attention scores in memory at a time."""
ReadKV = Callable[[torch.Tensor], torch.Tensor]
"""Returns the cached keys and values [n, vectors, kv_heads, head_size] of slots [n]."""


@dataclass(frozen=True, slots=True)
class LookAheadPlan:
    """A backend's plan of a step with tokens that see ahead."""

    plan: Any
    """The backend's plan of the step without them."""
    query_starts: Sequence[int]
    """As in `AttentionInputs`, like the next three."""
    kv_lens: Sequence[int]
    block_table: torch.Tensor
    block_size: int
    spans: Sequence[LookAheadSpan]


def attend_spans(
    params: AttentionParams,
    query: torch.Tensor,
    plan: LookAheadPlan,
    read: ReadKV,
    out: torch.Tensor,
) -> torch.Tensor:
    """Write the attention of spans to `out` [num_tokens, heads, value size], and return it."""
    for start, stop, end, later in plan.spans:
        sequence = bisect_right(plan.query_starts, start) - 1
        offset = plan.kv_lens[sequence] - plan.query_starts[sequence + 1]
        first = first_visible(params, start + offset)
        ranges = ((first, end), *later)
        positions = torch.cat([torch.arange(*each, device=query.device) for each in ranges])
        blocks = plan.block_table[sequence, positions // plan.block_size].long()
        kv = read(blocks * plan.block_size + positions % plan.block_size)
        step = max(1, MAX_SCORES // (params.heads * len(positions)))
        for at in range(start, stop, step):
            until = min(stop, at + step)
            own = torch.arange(at + offset, until + offset, device=query.device)
            out[at:until] = attend_dense(
                params,
                query[at:until],
                kv[:, 0],
                kv[:, -1, :, : params.value_size],
                own,
                visible=positions,
            )
    return out
