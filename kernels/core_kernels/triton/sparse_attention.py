"""Selection of the tokens that sparse attention reads, by the scores of an indexer.

Two launches: scores of all visible tokens, then the positions of the highest ones of each token.
A token that sees at most `top_k` tokens selects all of them, and has no scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.attention_shapes import PIECE, Step
from core_kernels.triton.decode_plan import DecodePlan
from core_kernels.triton.launching import (
    MIN_DOT_SIZE,
    find_segments,
    next_power_of_2,
    product,
    uses_float32,
)
from core_kernels.triton.sampling import float_order, least_order

Tensor = torch.Tensor

TILE: Final = 64
"""Keys that a program scores at a time."""
CHUNK: Final = 1024
"""Scores that are compared at a time."""
MAX_SCORES: Final = 1 << 25
"""Maximum scores in memory at a time."""
PLANNED: Final = 128
"""Tokens that a program plans, if there are too many to split their keys."""


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """The tokens of a step as sequences of their own, for all layers."""

    owners: Tensor
    """[num_tokens] int32: the sequence of each token."""
    seen: Tensor
    """[num_tokens] int32: number of tokens that it sees."""
    lengths: Tensor
    """[num_tokens] int64: number of tokens that it attends to."""
    starts: Tensor
    """[num_tokens + 1] int32: 0, 1, 2, ..."""
    decode: DecodePlan | None
    """How the positions that each token attends to are split; None: there are as many tokens as
    programs.
    """


def plan_tokens(step: Step, top_k: int, programs: int) -> TokenPlan:
    """Return the plan of tokens that attend to at most `top_k` tokens; `programs`: number of
    programs to fill the device.
    """
    count = step.num_tokens
    device = step.lengths.device
    owners, seen = torch.empty((2, count), dtype=torch.int32, device=device)
    starts = torch.empty(count + 1, dtype=torch.int32, device=device)
    lengths = torch.empty(count, dtype=torch.int64, device=device)
    decode = None
    block = PLANNED
    if count < programs:
        decode = DecodePlan(torch.empty_like(starts), starts.new_empty(programs))
        block = next_power_of_2(count)
    if count:
        _plan_tokens[(triton.cdiv(count, block),)](
            step.starts, step.lengths, owners, seen, lengths, starts,
            None if decode is None else decode.pieces, None if decode is None else decode.arrivals,
            len(step.lengths), count, programs, top_k, BLOCK=block, PIECE=PIECE, num_warps=4,
        )  # fmt: skip
    return TokenPlan(owners, seen, lengths, starts, decode)


def select_positions(
    query: Tensor,
    weights: Tensor,
    cache: Tensor,
    step: Step,
    plan: TokenPlan,
    top_k: int,
    max_len: int,
    programs: int,
) -> Tensor:
    """Return the positions [num_tokens, top_k] int32 of the highest scores, ascending.

    Of equal scores the first ones are selected; of a token that sees fewer, positions after these
    are not set. query is [num_tokens, heads, size], weights [num_tokens, heads] float32, cache
    [num_blocks, block_size, size] the keys. `max_len`: limit of the lengths; `programs`: number of
    programs to fill the device.
    """
    count = len(query)
    positions = torch.empty((count, top_k), dtype=torch.int32, device=query.device)
    at_once = max(1, min(count, MAX_SCORES // max_len))
    scores = torch.empty((at_once, max_len), dtype=torch.float32, device=query.device)
    for start in range(0, count, at_once):
        own = slice(start, start + at_once)
        seen = plan.seen[own]
        _score(
            query[own], weights[own], cache, step, plan.owners[own], seen, scores, top_k, programs
        )
        _select[(len(seen),)](
            scores, scores.stride(0), seen, positions[own], top_k, CHUNK=CHUNK, num_warps=8
        )
    return positions


def _score(
    query: Tensor,
    weights: Tensor,
    cache: Tensor,
    step: Step,
    owners: Tensor,
    seen: Tensor,
    scores: Tensor,
    top_k: int,
    programs: int,
) -> None:
    """Write the scores of the tokens that see more than `top_k`."""
    count, heads, size = query.shape
    tiles = triton.cdiv(scores.shape[1], TILE)
    splits = max(1, min(tiles, triton.cdiv(programs, count)))
    _index_scores[count, splits](
        query, query.stride(0), query.stride(1), weights, weights.stride(0), cache,
        cache.stride(0), cache.stride(1), step.table, step.table.stride(0), owners, seen,
        scores, scores.stride(0), top_k, splits,
        BLOCK_SIZE=step.block_size, HEADS=heads, ROWS=next_power_of_2(heads, MIN_DOT_SIZE),
        SIZE=size, BLOCK=next_power_of_2(size, MIN_DOT_SIZE), TILE=TILE, WIDE=uses_float32(query),
        num_warps=4, num_stages=2,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_seqs", "num_tokens", "num_arrivals", "top_k"])
def _plan_tokens(
    query_starts, kv_lengths, owners, seen, lengths, starts, pieces, arrivals, num_seqs,
    num_tokens, num_arrivals, top_k, BLOCK: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """One program: some tokens; all of them where their positions are split into pieces."""
    number = tl.arange(0, BLOCK)
    token = tl.program_id(0) * BLOCK + number
    mine = token < num_tokens
    sequence = find_segments(query_starts, num_seqs, token)
    later = tl.load(query_starts + sequence + 1) - token - 1
    visible = tl.load(kv_lengths + sequence).to(tl.int32) - later
    attended = tl.minimum(visible, top_k)
    tl.store(owners + token, sequence, mask=mine)
    tl.store(seen + token, visible, mask=mine)
    tl.store(lengths + token, attended.to(tl.int64), mask=mine)
    tl.store(starts + token, token, mask=mine)
    tl.store(starts + token + 1, token + 1, mask=mine)
    if pieces is not None:
        # Padding sees less than nothing.
        own = tl.where(mine, (tl.maximum(attended, 0) + PIECE - 1) // PIECE, 0)
        ends = tl.cumsum(own, 0)
        tl.store(pieces + token, ends - own, mask=mine)
        tl.store(pieces + num_tokens, tl.sum(own))
        for at in range(0, num_arrivals, BLOCK):
            tl.store(arrivals + at + number, number * 0, mask=at + number < num_arrivals)


@triton.jit(do_not_specialize=["table_row", "scores_row", "top_k", "splits"])
def _index_scores(
    query, query_token, query_head, weights, weights_row, cache, cache_block, cache_slot, table,
    table_row, owners, seen, scores, scores_row, top_k, splits,
    BLOCK_SIZE: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One program: every so many tiles of the keys that a token sees."""
    token = tl.program_id(0).to(tl.int64)
    visible = tl.load(seen + token)
    if visible > top_k:
        head = tl.arange(0, ROWS)
        element = tl.arange(0, BLOCK)
        of_head = (head < HEADS)[:, None] & (element < SIZE)[None, :]
        rows = query + token * query_token + head[:, None] * query_head + element[None, :]
        read = tl.load(rows, mask=of_head, other=0.0)
        weight = tl.load(weights + token * weights_row + head, mask=head < HEADS, other=0.0)
        blocks = table + tl.load(owners + token).to(tl.int64) * table_row
        for at in range(tl.program_id(1) * TILE, visible, splits * TILE):
            position = at + tl.arange(0, TILE)
            known = position < visible
            block = tl.load(blocks + position // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
            slot = cache + block * cache_block + position % BLOCK_SIZE * cache_slot
            keys = tl.load(
                slot[:, None] + element[None, :],
                mask=known[:, None] & (element < SIZE)[None, :],
                other=0.0,
            )
            found = product(read, tl.trans(keys), tl.zeros((ROWS, TILE), tl.float32), WIDE)
            score = tl.sum(tl.maximum(found, 0.0) * weight[:, None], 0)
            score = tl.where(score == 0.0, 0.0, score)  # -0.0 is equal, and not less
            tl.store(scores + token * scores_row + position, score, mask=known)


@triton.jit(do_not_specialize=["scores_row", "top_k"])
def _select(scores, scores_row, seen, positions, top_k, CHUNK: tl.constexpr):
    """One program: the positions of a token."""
    token = tl.program_id(0).to(tl.int64)
    visible = tl.load(seen + token)
    positions += token * top_k
    number = tl.arange(0, CHUNK)
    if visible <= top_k:
        for at in range(0, visible, CHUNK):
            tl.store(positions + at + number, at + number, mask=at + number < visible)
    else:
        scores += token * scores_row
        lowest = tl.full((), -(1 << 31), tl.int64)
        limit = least_order(scores, visible, lowest, 0.0, top_k.to(tl.float64), False, CHUNK)
        above = tl.zeros((), tl.int32)
        for at in range(0, visible, CHUNK):
            mine = at + number < visible
            order = float_order(tl.load(scores + at + number, mask=mine, other=0.0))
            above += tl.sum((mine & (order > limit)).to(tl.int32))
        filled = tl.zeros((), tl.int32)
        equals = tl.zeros((), tl.int32)
        for at in range(0, visible, CHUNK):
            mine = at + number < visible
            order = float_order(tl.load(scores + at + number, mask=mine, other=0.0))
            equal = (mine & (order == limit)).to(tl.int32)
            is_first = equals + tl.cumsum(equal, 0) <= top_k - above
            chosen = ((mine & (order > limit)) | ((equal > 0) & is_first)).to(tl.int32)
            index = filled + tl.cumsum(chosen, 0) - 1
            tl.store(positions + index, at + number, mask=chosen > 0)
            filled += tl.sum(chosen)
            equals += tl.sum(equal)
