"""Paged attention: prefill in query tiles, decode on a fixed grid with evenly split keys.

A cache is [num_blocks, vectors, block_size, kv_heads, head_size]: a token's key and its value (no
value if it is a prefix of the key). The query heads of a KV head are rows of one product, so its
keys are read once.

Decode splits the visible keys of each sequence into pieces of `PIECE` keys and numbers them across
sequences. Each program processes a contiguous range of pieces. Its partial sums for a sequence are
stored at index program + sequence; no two pairs collide, because both only increase. So the grid is
the same in every step, whatever the lengths.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.attention_shapes import (
    LONG_HEAD,
    MAX_ROWS,
    PIECE,
    AttentionShape,
    Layer,
    Step,
)
from core_kernels.triton.launching import (
    exponential,
    find_segment,
    next_power_of_2,
    product,
    tanh,
    uses_float32,
)

Tensor = torch.Tensor

LENGTHS: Final = (
    "num_seqs",
    "programs",
    "table_row",
    "window",
    "chunk",
    "scale",
    "softcap",
    "reach",
)
"""Arguments that vary by step or layer; kernels are not specialized for them."""
PARTIALS: Final = 8
"""Partial sums that a merge reads at a time: one after the other, each would wait for memory."""


def decode(
    layer: Layer,
    query: Tensor,
    cache: Tensor,
    step: Step,
    pieces: Tensor,
    programs: int,
    out: Tensor,
) -> None:
    """Write the attention of decode sequences (one token) to `out` [num_tokens, heads, value_size].

    Rows of other sequences are unchanged. `pieces` is the result of `plan_decode`.
    """
    num_seqs = len(step.lengths)
    if not num_seqs:
        return
    shape = AttentionShape.of(layer, queries=1)
    num_partials = programs + num_seqs
    sums = torch.empty(
        (num_partials, layer.heads, shape.main), dtype=torch.float32, device=query.device
    )
    scales = torch.empty((num_partials, layer.heads, 2), dtype=torch.float32, device=query.device)
    _decode[programs, layer.kv_heads * shape.parts](
        query, query.stride(0), query.stride(1), sums, scales, pieces, num_seqs,
        **_common(layer, shape, cache, step), WIDE=uses_float32(query), PIECE=PIECE,
        num_warps=8 if shape.is_long else 4, num_stages=2,
    )  # fmt: skip
    _merge[num_seqs, layer.heads](
        sums, scales, out, out.stride(0), out.stride(1), layer.sinks, pieces, step.starts,
        num_seqs, programs,
        HEADS=layer.heads, MAIN=shape.main, VALUE=layer.value_size, PARTIALS=PARTIALS,
        num_warps=max(1, shape.main // LONG_HEAD),
    )  # fmt: skip


def attend(
    layer: Layer, query: Tensor, cache: Tensor, step: Step, out: Tensor, *, skip_single: bool
) -> None:
    """Write the attention of every token to `out` [num_tokens, heads, value_size].

    `skip_single`: skip sequences with one token, which `decode` computes.
    """
    num_seqs = len(step.lengths)
    if not step.num_tokens:
        return
    shape = AttentionShape.of(
        layer, queries=step.num_tokens // num_seqs if step.queries is None else step.queries
    )
    queries = shape.rows // shape.heads
    _attend[step.num_tokens // queries + num_seqs, layer.kv_heads * shape.parts](
        query, query.stride(0), query.stride(1), out, out.stride(0), out.stride(1), layer.sinks,
        num_seqs,
        **_common(layer, shape, cache, step), LEAST=2 if skip_single else 1, QUERIES=queries,
        WIDE=uses_float32(query),
        num_warps=8 if shape.is_long or shape.rows == MAX_ROWS else 4, num_stages=2,
    )  # fmt: skip


def plan_decode(starts: Tensor, lengths: Tensor, window: int, chunk: int) -> Tensor:
    """Return the first piece of each sequence and their total: [num_seqs + 1] int32.

    Only decode sequences (one token) have pieces.
    """
    num_seqs = len(lengths)
    pieces = torch.empty(num_seqs + 1, dtype=torch.int32, device=lengths.device)
    _plan[(1,)](
        starts,
        lengths,
        pieces,
        num_seqs,
        window,
        chunk,
        BLOCK=next_power_of_2(num_seqs),
        PIECE=PIECE,
        num_warps=4,
    )
    return pieces


def _common(layer: Layer, shape: AttentionShape, cache: Tensor, step: Step) -> dict[str, Any]:
    """Return the arguments that both kernels share."""
    bias = layer.distance_bias
    return {
        "cache": cache,
        "cache_block": cache.stride(0),
        "cache_vector": cache.stride(1),
        "cache_slot": cache.stride(2),
        "cache_head": cache.stride(3),
        "table": step.table,
        "table_row": step.table.stride(0),
        "starts": step.starts,
        "lengths": step.lengths,
        "window": layer.window,
        "chunk": layer.chunk,
        "scale": layer.scale,
        "softcap": layer.softcap,
        "alibi": layer.alibi,
        "bias": bias,
        "reach": 0 if bias is None else bias.shape[1] // 2,
        "BLOCK_SIZE": step.block_size,
        "GROUP": layer.heads // layer.kv_heads,
        "HEADS": shape.heads,
        "PARTS": shape.parts,
        "ROWS": shape.rows,
        "MAIN": shape.main,
        "REST": shape.rest,
        "VALUE": layer.value_size,
        "KEY": layer.head_size,
        "LATENT": layer.is_latent,
        "CAUSAL": layer.causal,
        "REACHES": bool(layer.window or layer.chunk),
        "CAPPED": bool(layer.softcap),
        "TILE": PIECE // 2 if shape.is_long else PIECE,
    }


@triton.jit
def _first_visible(position, window, chunk):
    """Return the first position visible to the token at `position`."""
    first = position * 0
    if window > 0:
        first = tl.maximum(position - window + 1, 0)
    if chunk > 0:
        first = position // chunk * chunk
    return first


@triton.jit(do_not_specialize=LENGTHS)
def _plan(
    starts, lengths, pieces, num_seqs, window, chunk, BLOCK: tl.constexpr, PIECE: tl.constexpr
):
    i = tl.arange(0, BLOCK)
    mine = i < num_seqs
    length = tl.load(lengths + i, mask=mine, other=0).to(tl.int32)
    count = tl.load(starts + i + 1, mask=mine, other=0) - tl.load(starts + i, mask=mine, other=0)
    seen = length - _first_visible(length - 1, window, chunk)
    number = tl.where(count == 1, (seen + PIECE - 1) // PIECE, 0)
    ends = tl.cumsum(number, 0)
    tl.store(pieces + i, ends - number, mask=mine)
    tl.store(pieces + num_seqs, tl.sum(number))


@triton.jit
def _walk(
    main, rest, positions, heads, first, end, best, total, sums,
    cache, cache_block, cache_vector, cache_slot, row, window, chunk, scale, softcap, alibi, bias,
    reach,
    BLOCK_SIZE: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, VALUE: tl.constexpr,
    KEY: tl.constexpr,
    LATENT: tl.constexpr, CAUSAL: tl.constexpr, REACHES: tl.constexpr, CAPPED: tl.constexpr,
    TILE: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Accumulate the keys at positions `first` to `end`; return maximum scores, weight sums and
    value sums. `row` is the sequence's block table; `cache` starts at the head.
    """
    element = tl.arange(0, MAIN)
    for at in range(first, end, TILE):
        key_positions = at + tl.arange(0, TILE)
        known = key_positions < end
        blocks = tl.load(row + key_positions // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
        slots = cache + blocks * cache_block + (key_positions % BLOCK_SIZE) * cache_slot
        key = tl.load(
            slots[:, None] + element[None, :],
            mask=known[:, None] & (element < VALUE)[None, :],
            other=0.0,
        )
        scores = product(main, tl.trans(key), tl.zeros((main.shape[0], TILE), tl.float32), WIDE)
        if REST > 0:
            more = VALUE + tl.arange(0, REST)
            others = tl.load(
                slots[:, None] + more[None, :],
                mask=known[:, None] & (more < KEY)[None, :],
                other=0.0,
            )
            scores = product(rest, tl.trans(others), scores, WIDE)
        scores *= scale
        if CAPPED:
            scores = softcap * tanh(scores / softcap)
        distance = key_positions[None, :] - positions[:, None]
        if alibi is not None:
            scores += tl.load(alibi + heads)[:, None] * distance
        if bias is not None:
            near = tl.minimum(tl.maximum(distance, -reach), reach) + reach
            scores += tl.load(bias + heads[:, None] * (2 * reach + 1) + near)
        seen = tl.broadcast_to(known[None, :], scores.shape)
        if CAUSAL:
            seen = seen & (distance <= 0)
        if REACHES:
            seen = seen & (
                key_positions[None, :] >= _first_visible(positions, window, chunk)[:, None]
            )
        scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(best, tl.max(scores, 1))
        weights = exponential(scores, highest[:, None])
        left = exponential(best, highest)
        total = total * left + tl.sum(weights, 1)
        if LATENT:
            value = key
        else:
            value_at = slots[:, None] + cache_vector + element[None, :]
            value = tl.load(value_at, mask=known[:, None] & (element < VALUE)[None, :], other=0.0)
        sums = product(weights.to(value.dtype), value, sums * left[:, None], WIDE)
        best = highest
    return best, total, sums


@triton.jit(do_not_specialize=LENGTHS)
def _decode(
    query, query_token, query_head, sums_out, scales_out, pieces, num_seqs,
    cache, cache_block, cache_vector, cache_slot, cache_head, table, table_row, starts, lengths,
    window, chunk, scale, softcap, alibi, bias, reach,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    MAIN: tl.constexpr, REST: tl.constexpr, VALUE: tl.constexpr, KEY: tl.constexpr,
    LATENT: tl.constexpr,
    CAUSAL: tl.constexpr, REACHES: tl.constexpr, CAPPED: tl.constexpr, TILE: tl.constexpr,
    WIDE: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """One program: some pieces, for the query heads of one KV head or a part of them."""
    program = tl.program_id(0)
    kv_head = tl.program_id(1) // PARTS
    local = tl.program_id(1) % PARTS * HEADS + tl.arange(0, ROWS)
    mine = (tl.arange(0, ROWS) < HEADS) & (local < GROUP)
    heads = tl.where(mine, kv_head * GROUP + local, 0)
    all_heads = tl.num_programs(1) // PARTS * GROUP
    element = tl.arange(0, MAIN)

    all_pieces = tl.load(pieces + num_seqs)
    share = tl.cdiv(all_pieces, tl.num_programs(0))
    piece = program * share
    last = tl.minimum(piece + share, all_pieces)
    sequence = find_segment(pieces, num_seqs, piece)
    while piece < last:
        before = tl.load(pieces + sequence)
        stop = tl.minimum(last, tl.load(pieces + sequence + 1))
        length = tl.load(lengths + sequence).to(tl.int32)
        origin = _first_visible(length - 1, window, chunk)
        query_rows = (
            query
            + tl.load(starts + sequence).to(tl.int64) * query_token
            + heads[:, None] * query_head
        )
        main = tl.load(
            query_rows + element[None, :],
            mask=mine[:, None] & (element < VALUE)[None, :],
            other=0.0,
        )
        rest = main
        if REST > 0:
            more = VALUE + tl.arange(0, REST)
            rest = tl.load(
                query_rows + more[None, :], mask=mine[:, None] & (more < KEY)[None, :], other=0.0
            )
        best, total, sums = _walk(
            main, rest, tl.zeros((ROWS,), tl.int32) + length - 1, heads,
            origin + (piece - before) * PIECE, tl.minimum(origin + (stop - before) * PIECE, length),
            tl.full((ROWS,), float("-inf"), tl.float32), tl.zeros((ROWS,), tl.float32),
            tl.zeros((ROWS, MAIN), tl.float32),
            cache + kv_head * cache_head, cache_block, cache_vector, cache_slot,
            table + sequence * table_row,
            window, chunk, scale, softcap, alibi, bias, reach,
            BLOCK_SIZE, MAIN, REST, VALUE, KEY, LATENT, CAUSAL, REACHES, CAPPED, TILE, WIDE,
        )  # fmt: skip
        index = (program + sequence).to(tl.int64) * all_heads + heads
        tl.store(sums_out + index[:, None] * MAIN + element[None, :], sums, mask=mine[:, None])
        tl.store(scales_out + index * 2, best, mask=mine)
        tl.store(scales_out + index * 2 + 1, total, mask=mine)
        piece = stop
        sequence += 1


@triton.jit(do_not_specialize=LENGTHS)
def _merge(
    sums_in, scales_in, out, out_token, out_head, sinks, pieces, starts, num_seqs, programs,
    HEADS: tl.constexpr, MAIN: tl.constexpr, VALUE: tl.constexpr, PARTIALS: tl.constexpr,
):  # fmt: skip
    """One program: merges the partial sums of one head of one sequence, `PARTIALS` at a time."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    begin = tl.load(pieces + sequence)
    end = tl.load(pieces + sequence + 1)
    if end > begin:
        share = tl.cdiv(tl.load(pieces + num_seqs), programs)
        element = tl.arange(0, MAIN)
        best = tl.full((1,), float("-inf"), tl.float32)
        total = tl.zeros((1,), tl.float32)
        if sinks is not None:
            best = tl.zeros((1,), tl.float32) + tl.load(sinks + head).to(tl.float32)
            total += 1.0
        sums = tl.zeros((MAIN,), tl.float32)
        stop = (end - 1) // share + 1
        for first in range(begin // share, stop, PARTIALS):
            program = first + tl.arange(0, PARTIALS)
            known = program < stop
            index = (program + sequence).to(tl.int64) * HEADS + head
            theirs = tl.load(scales_in + index * 2, mask=known, other=float("-inf"))
            totals = tl.load(scales_in + index * 2 + 1, mask=known, other=0.0)
            partials = tl.load(
                sums_in + index[:, None] * MAIN + element[None, :], mask=known[:, None], other=0.0
            )
            highest = tl.maximum(best, tl.max(theirs, 0))
            left = exponential(best, highest)
            weights = exponential(theirs, highest)
            total = total * left + tl.sum(totals * weights, 0)
            sums = sums * left + tl.sum(partials * weights[:, None], 0)
            best = highest
        at = out + tl.load(starts + sequence).to(tl.int64) * out_token + head * out_head
        tl.store(at + element, (sums / total).to(out.dtype.element_ty), mask=element < VALUE)


@triton.jit(do_not_specialize=LENGTHS)
def _attend(
    query, query_token, query_head, out, out_token, out_head, sinks, num_seqs,
    cache, cache_block, cache_vector, cache_slot, cache_head, table, table_row, starts, lengths,
    window, chunk, scale, softcap, alibi, bias, reach,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    MAIN: tl.constexpr, REST: tl.constexpr, VALUE: tl.constexpr, KEY: tl.constexpr,
    LATENT: tl.constexpr,
    CAUSAL: tl.constexpr, REACHES: tl.constexpr, CAPPED: tl.constexpr, TILE: tl.constexpr,
    LEAST: tl.constexpr, QUERIES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One program: consecutive queries of a sequence, for the query heads of one KV head or a part.

    Sequence s owns the programs from starts[s] // QUERIES + s; the last ones may be idle.
    """
    program = tl.program_id(0)
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts + middle) // QUERIES + middle <= program:
            low = middle
        else:
            high = middle
    start = tl.load(starts + low)
    count = tl.load(starts + low + 1) - start
    begin = (program - start // QUERIES - low) * QUERIES
    if (begin < count) & (count >= LEAST):
        kv_head = tl.program_id(1) // PARTS
        row = tl.arange(0, ROWS)
        token = begin + row // HEADS
        local = tl.program_id(1) % PARTS * HEADS + row % HEADS
        mine = (token < count) & (local < GROUP) & (row // HEADS < QUERIES)
        heads = tl.where(mine, kv_head * GROUP + local, 0)
        length = tl.load(lengths + low).to(tl.int32)
        positions = length - count + tl.minimum(token, count - 1)
        element = tl.arange(0, MAIN)
        query_rows = (
            query
            + (start + token).to(tl.int64)[:, None] * query_token
            + heads[:, None] * query_head
        )
        main = tl.load(
            query_rows + element[None, :],
            mask=mine[:, None] & (element < VALUE)[None, :],
            other=0.0,
        )
        rest = main
        if REST > 0:
            more = VALUE + tl.arange(0, REST)
            rest = tl.load(
                query_rows + more[None, :], mask=mine[:, None] & (more < KEY)[None, :], other=0.0
            )
        first = 0
        end = length
        if CAUSAL:
            first = _first_visible(length - count + begin, window, chunk)
            end = length - count + tl.minimum(begin + QUERIES, count)
        best, total, sums = _walk(
            main, rest, positions, heads, first, end,
            tl.full((ROWS,), float("-inf"), tl.float32), tl.zeros((ROWS,), tl.float32),
            tl.zeros((ROWS, MAIN), tl.float32),
            cache + kv_head * cache_head, cache_block, cache_vector, cache_slot,
            table + low * table_row,
            window, chunk, scale, softcap, alibi, bias, reach,
            BLOCK_SIZE, MAIN, REST, VALUE, KEY, LATENT, CAUSAL, REACHES, CAPPED, TILE, WIDE,
        )  # fmt: skip
        if sinks is not None:
            sink = tl.load(sinks + heads).to(tl.float32)
            highest = tl.maximum(best, sink)
            left = exponential(best, highest)
            total = total * left + exponential(sink, highest)
            sums = sums * left[:, None]
        at = out + (start + token).to(tl.int64)[:, None] * out_token + heads[:, None] * out_head
        found = (sums / total[:, None]).to(out.dtype.element_ty)
        tl.store(at + element[None, :], found, mask=mine[:, None] & (element < VALUE)[None, :])
