"""Computes every row alone, so a row's result is bitwise independent of the batch; slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from builtin_plugins.attention_backends.reference.backend import ReferenceAttention
from core.api import Entry, hookimpl
from core.models.ops import reference
from core.models.ops.sampling import Truncation

Tensor = torch.Tensor


def _by_row(op: Callable[..., Any]) -> Callable[..., Any]:
    """Return the op applied to each row of those arguments that have as many rows as the first."""

    def alone(first: Tensor, *others: Any) -> Any:
        rows = first.shape[0]
        mine = [
            isinstance(other, Tensor) and op in SHARED and i in SHARED[op]
            for i, other in enumerate(others)
        ]
        found = [
            op(
                first[row : row + 1],
                *(o[row : row + 1] if m else o for o, m in zip(others, mine, strict=True)),
            )
            for row in range(rows)
        ]
        if not found:
            return op(first, *others)
        if isinstance(found[0], tuple):
            return tuple(torch.cat(parts) for parts in zip(*found, strict=True))
        return torch.cat(found)

    return alone


SHARED: dict[Callable[..., Any], tuple[int, ...]] = {
    reference.add_rms_norm: (0,),
    reference.rotary: (0, 2),
    reference.draw: (0, 1),
}
"""Indices of further arguments of an op that have one row per row of the first."""
OPS = ("rms_norm", "add_rms_norm", "silu_and_mul", "rotary", "linear", "best", "draw")


def truncate(logits: Tensor, truncation: Truncation) -> Tensor:
    """Narrow each row by its own bounds."""
    rows = []
    for row in range(logits.shape[0]):
        own = Truncation(
            [int(truncation.top_k[row])],
            [float(truncation.top_p[row])],
            logits.shape[-1],
            logits.device,
        )
        rows.append(reference.truncate(logits[row : row + 1], own))
    return torch.cat(rows) if rows else logits


class OneTokenAttention(ReferenceAttention):
    """Each token attends by itself, over keys that are all there."""

    def attend(
        self, params: Any, query: Tensor, key: Tensor, value: Tensor, cache: Tensor, plan: Any
    ) -> Tensor:
        """Write all keys and values, then take the tokens one by one."""
        blocks = plan.slots // plan.block_size
        offsets = plan.slots % plan.block_size
        cache[blocks, 0, offsets] = key
        cache[blocks, 1, offsets] = value
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        for i, kv_len in enumerate(plan.kv_lens):
            start = plan.query_starts[i]
            end = plan.query_starts[i + 1]
            for token in range(start, end):
                seen = kv_len - (end - 1 - token)
                table = plan.block_table[i, : -(-seen // plan.block_size)]
                keys, values = (cache[table, side].flatten(0, 1)[:seen] for side in (0, 1))
                out[token] = _attend(params, query[token], keys, values)
        return out


def _attend(params: Any, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return [heads, size] for one token."""
    group = params.heads // params.kv_heads
    out = torch.empty_like(query)
    for head in range(params.heads):
        own = keys[:, head // group].contiguous(), values[:, head // group].contiguous()
        shares = ((own[0] @ query[head].contiguous()) * params.scale).softmax(-1)
        out[head] = shares @ own[1]
    return out


@hookimpl
def engine_op_impls() -> list[Entry]:
    """Return the ops."""
    made = [
        Entry(f"{op}/one_row", _by_row(getattr(reference, op)), "row by row", priority=100)
        for op in OPS
    ]
    return [*made, Entry("truncate/one_row", truncate, "row by row", priority=100)]


@hookimpl
def engine_attention_backends() -> list[Entry]:
    """Return the backend."""
    return [Entry("one_token", OneTokenAttention, "token by token")]
