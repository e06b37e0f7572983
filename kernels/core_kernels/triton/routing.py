"""Sorts (token, expert) pairs by expert, and divides each expert's pairs into blocks."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import MIN_DOT_SIZE, next_power_of_2

Tensor = torch.Tensor

MAX_PAIRS: Final = 1024
"""Largest number of pairs that one launch sorts; each is compared with all others."""
COMPARED: Final = 8192
"""Pairs of pairs that are compared at a time."""


class Routing(NamedTuple):
    """Pairs by expert, on the device; int64."""

    order: Tensor
    """[n]: pairs sorted by expert; those of one expert in their order."""
    starts: Tensor
    """[experts + 1]: start of each expert in `order`."""
    blocks: Tensor
    """[experts + 1]: first block of each expert; a block has up to `pairs` pairs of one."""


def route(experts: Tensor, num_experts: int, pairs: int) -> Routing:
    """Return the routing of contiguous `experts` int64 [n], for blocks of `pairs`."""
    count = len(experts)
    if not 0 < count <= MAX_PAIRS:
        return _route_many(experts, num_experts, pairs)
    order = torch.empty_like(experts)
    starts, blocks = experts.new_empty(2, num_experts + 1)
    block = next_power_of_2(count, MIN_DOT_SIZE)
    own = next_power_of_2(num_experts + 1, MIN_DOT_SIZE)
    _route[(1,)](
        experts, order, starts, blocks, count, num_experts,
        PAIRS=pairs, BLOCK=block, EXPERTS=own, AT_ONCE=min(block, COMPARED // max(block, own)),
        num_warps=8,
    )  # fmt: skip
    return Routing(order, starts, blocks)


def _route_many(experts: Tensor, num_experts: int, pairs: int) -> Routing:
    order = experts.argsort(stable=True)
    numbers = torch.arange(num_experts + 1, device=experts.device)
    starts = torch.searchsorted(experts[order], numbers)
    blocks = torch.zeros_like(starts)
    torch.cumsum((starts.diff() + pairs - 1) // pairs, 0, out=blocks[1:])
    return Routing(order, starts, blocks)


@triton.jit(do_not_specialize=["count", "num_experts"])
def _route(
    experts, order, starts, blocks, count, num_experts,
    PAIRS: tl.constexpr, BLOCK: tl.constexpr, EXPERTS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """One program: all pairs."""
    pair = tl.arange(0, BLOCK)
    expert = tl.arange(0, EXPERTS)
    own = tl.load(experts + pair, mask=pair < count, other=0).to(tl.int32)
    position = tl.zeros((BLOCK,), tl.int32)
    start = tl.zeros((EXPERTS,), tl.int32)
    end = tl.zeros((EXPERTS,), tl.int32)
    for at in range(0, BLOCK, AT_ONCE):
        other = at + tl.arange(0, AT_ONCE)
        # Beyond the last pair: an expert after all others.
        theirs = tl.load(experts + other, mask=other < count, other=EXPERTS).to(tl.int32)[None, :]
        is_earlier = (theirs == own[:, None]) & (other[None, :] < pair[:, None])
        position += tl.sum(((theirs < own[:, None]) | is_earlier).to(tl.int32), 1)
        start += tl.sum((theirs < expert[:, None]).to(tl.int32), 1)
        end += tl.sum((theirs <= expert[:, None]).to(tl.int32), 1)
    tl.store(order + position, pair.to(tl.int64), mask=pair < count)
    known = expert <= num_experts
    tl.store(starts + expert, start.to(tl.int64), mask=known)
    number = (end - start + PAIRS - 1) // PAIRS
    first = tl.cumsum(number, 0) - number
    tl.store(blocks + expert, first.to(tl.int64), mask=known)
