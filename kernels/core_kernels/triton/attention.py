"""Paged attention: prefill in query tiles, decode on a fixed grid with evenly split keys.

A cache is [num_blocks, vectors, block_size, kv_heads, head_size]: a token's key and its value (no
value if it is a prefix of the key). The query heads of a KV head are rows of one product, so its
keys are read once.

Decode splits the visible keys of each sequence into pieces of `PIECE` keys and numbers them across
sequences. Each program processes a contiguous range of pieces. So the grid is the same in every
step, whatever the lengths.

A query may attend to selected positions only (`Selected`): each token is its own sequence then.

A program with all pieces of a sequence writes its output. Otherwise it stores partial sums at index
program + sequence; no two pairs collide, because both only increase. The program that stores the
last ones merges them in order of programs, so the result does not depend on which program that is.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.attention_shapes import (
    MAX_ROWS,
    PIECE,
    AttentionShape,
    Layer,
    Selected,
    Step,
)
from core_kernels.triton.decode_plan import DecodePlan, first_visible, programs_of_piece
from core_kernels.triton.launching import (
    exponential,
    find_segment,
    product,
    tanh,
    unknown_zero,
    uses_float32,
)
from core_kernels.triton.registers import LATENT_DECODE, register_options

Tensor = torch.Tensor

LENGTHS: Final = (
    "num_seqs",
    "table_row",
    "window",
    "chunk",
    "scale",
    "softcap",
    "reach",
)
"""Arguments that vary by step or layer; kernels are not specialized for them."""
PARTIALS: Final = 8
"""Maximum partial sums that a merge reads at a time: one by one, each would wait for memory."""
MERGED_ELEMENTS: Final = 1024
"""Elements of partial sums that a merge reads at a time: more would take registers from the walk,
and with them programs from a multiprocessor.
"""
MERGED_COLUMNS: Final = 128
"""Maximum elements of a head among them."""


def decode(
    layer: Layer,
    query: Tensor,
    cache: Tensor,
    step: Step,
    plan: DecodePlan,
    programs: int,
    out: Tensor,
    selected: Selected | None = None,
) -> None:
    """Write the attention of decode sequences (one token) to `out` [num_tokens, heads, value_size].

    Rows of other sequences are unchanged. `plan` is the result of `plan_decode`.
    """
    num_seqs = len(step.lengths)
    if not num_seqs:
        return
    shape = AttentionShape.of(layer, queries=1)
    num_partials = programs + num_seqs
    columns = min(MERGED_COLUMNS, shape.main)
    num_warps = 8 if shape.is_long else 4
    sums = torch.empty(
        (num_partials, layer.heads, shape.main), dtype=torch.float32, device=query.device
    )
    scales = torch.empty((num_partials, layer.heads, 2), dtype=torch.float32, device=query.device)
    _decode[programs, programs_of_piece(layer)](
        query, query.stride(0), query.stride(1), sums, scales, out, out.stride(0), out.stride(1),
        layer.sinks, plan.pieces, plan.arrivals, num_seqs,
        **_common(layer, shape, cache, step, selected), WIDE=uses_float32(query), PIECE=PIECE,
        PARTIALS=max(1, min(PARTIALS, MERGED_ELEMENTS // (shape.heads * columns))),
        COLUMNS=columns,
        num_warps=num_warps, num_stages=2,
        **register_options(LATENT_DECODE if layer.is_latent else "_decode", num_warps),
    )  # fmt: skip


def attend(
    layer: Layer,
    query: Tensor,
    cache: Tensor,
    step: Step,
    out: Tensor,
    selected: Selected | None = None,
    *,
    skip_single: bool,
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
    num_warps = 8 if shape.is_long or shape.rows == MAX_ROWS else 4
    _attend[step.num_tokens // queries + num_seqs, layer.kv_heads * shape.parts](
        query, query.stride(0), query.stride(1), out, out.stride(0), out.stride(1), layer.sinks,
        num_seqs,
        **_common(layer, shape, cache, step, selected),
        LEAST=2 if skip_single else 1, QUERIES=queries,
        WIDE=uses_float32(query),
        num_warps=num_warps, num_stages=2, **register_options("_attend", num_warps),
    )  # fmt: skip


def _common(
    layer: Layer, shape: AttentionShape, cache: Tensor, step: Step, selected: Selected | None
) -> dict[str, Any]:
    """Return the arguments that both kernels share."""
    bias = layer.distance_bias
    return {
        "selected": None if selected is None else selected.positions,
        "owners": None if selected is None else selected.owners,
        "selected_row": 0 if selected is None else selected.positions.stride(0),
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
def _query(
    rows, mine, MAIN: tl.constexpr, REST: tl.constexpr, VALUE: tl.constexpr, KEY: tl.constexpr
):
    """Return the elements of queries that values have as well, and those that only keys have.

    `rows` [n, 1] are addresses. Without such elements the second part is the first.
    """
    element = tl.arange(0, MAIN)
    main = tl.load(
        rows + element[None, :], mask=mine[:, None] & (element < VALUE)[None, :], other=0.0
    )
    rest = main
    if REST > 0:
        more = VALUE + tl.arange(0, REST)
        rest = tl.load(rows + more[None, :], mask=mine[:, None] & (more < KEY)[None, :], other=0.0)
    return main, rest


@triton.jit
def _walk(
    main, rest, positions, heads, first, end, best, total, sums,
    cache, cache_block, cache_vector, cache_slot, row, chosen, window, chunk, scale, softcap, alibi,
    bias, reach,
    BLOCK_SIZE: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, VALUE: tl.constexpr,
    KEY: tl.constexpr,
    LATENT: tl.constexpr, CAUSAL: tl.constexpr, REACHES: tl.constexpr, CAPPED: tl.constexpr,
    TILE: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Accumulate the keys at positions `first` to `end`; return maximum scores, weight sums and
    value sums. `row` is the sequence's block table; `cache` starts at the head.

    `chosen`: the positions of the keys; None: keys are at positions `first` to `end`.
    """
    element = tl.arange(0, MAIN)
    for at in range(first, end, TILE):
        key_positions = at + tl.arange(0, TILE)
        known = key_positions < end
        if chosen is not None:
            key_positions = tl.load(chosen + key_positions, mask=known, other=0)
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
                key_positions[None, :] >= first_visible(positions, window, chunk)[:, None]
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


@triton.jit
def _write(best, total, sums, sinks, at, heads, mine, size, MAIN: tl.constexpr):
    """Write `size` elements of the output of each head to `at` [heads, 1]: value sums over weight
    sums.
    """
    if sinks is not None:
        sink = tl.load(sinks + heads).to(tl.float32)
        highest = tl.maximum(best, sink)
        left = exponential(best, highest)
        total = total * left + exponential(sink, highest)
        sums = sums * left[:, None]
    element = tl.arange(0, MAIN)
    found = (sums / total[:, None]).to(at.dtype.element_ty)
    tl.store(at + element[None, :], found, mask=mine[:, None] & (element < size)[None, :])


@triton.jit
def _merge(
    sums_in, scales_in, first, stop, sequence, heads, mine, all_heads, start, HEADS: tl.constexpr,
    MAIN: tl.constexpr, PARTIALS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Merge a sequence's partial sums of programs `first` to `stop`, `PARTIALS` at a time; return
    maximum scores, weight sums and `COLUMNS` value sums from `start` of some heads.
    """
    element = start + tl.arange(0, COLUMNS)
    best = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    sums = tl.zeros((HEADS, COLUMNS), tl.float32)
    for at in range(first, stop, PARTIALS):
        program = at + tl.arange(0, PARTIALS)
        known = (program < stop)[:, None] & mine[None, :]
        index = (program + sequence).to(tl.int64)[:, None] * all_heads + heads[None, :]
        # Past the cache of the multiprocessor: other ones wrote them.
        theirs = tl.load(
            scales_in + index * 2, mask=known, other=float("-inf"), cache_modifier=".cg"
        )
        totals = tl.load(scales_in + index * 2 + 1, mask=known, other=0.0, cache_modifier=".cg")
        partials = tl.load(
            sums_in + index[:, :, None] * MAIN + element[None, None, :],
            mask=known[:, :, None],
            other=0.0,
            cache_modifier=".cg",
        )
        highest = tl.maximum(best, tl.max(theirs, 0))
        left = exponential(best, highest)
        weights = exponential(theirs, highest[None, :])
        total = total * left + tl.sum(totals * weights, 0)
        sums = sums * left[:, None] + tl.sum(partials * weights[:, :, None], 0)
        best = highest
    return best, tl.where(mine, total, 1.0), sums


@triton.jit(do_not_specialize=LENGTHS)
def _decode(
    query, query_token, query_head, sums_out, scales_out, out, out_token, out_head, sinks, pieces,
    arrivals, num_seqs,
    cache, cache_block, cache_vector, cache_slot, cache_head, table, table_row, starts, lengths,
    selected, owners, selected_row, window, chunk, scale, softcap, alibi, bias, reach,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    MAIN: tl.constexpr, REST: tl.constexpr, VALUE: tl.constexpr, KEY: tl.constexpr,
    LATENT: tl.constexpr,
    CAUSAL: tl.constexpr, REACHES: tl.constexpr, CAPPED: tl.constexpr, TILE: tl.constexpr,
    WIDE: tl.constexpr, PIECE: tl.constexpr, PARTIALS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program: some pieces, for the query heads of one KV head or a part of them."""
    program = tl.program_id(0)
    kv_head = tl.program_id(1) // PARTS
    part = tl.program_id(1) % PARTS * HEADS
    local = part + tl.arange(0, ROWS)
    mine = (tl.arange(0, ROWS) < HEADS) & (local < GROUP)
    own_heads = tl.where(mine, kv_head * GROUP + local, 0)
    all_heads = tl.num_programs(1) // PARTS * GROUP
    element = tl.arange(0, MAIN)

    all_pieces = tl.load(pieces + num_seqs)
    share = tl.cdiv(all_pieces, tl.num_programs(0))
    piece = program * share
    last = tl.minimum(piece + share, all_pieces)
    sequence = find_segment(pieces, num_seqs, piece)
    while piece < last:
        before = tl.load(pieces + sequence)
        after = tl.load(pieces + sequence + 1)
        stop = tl.minimum(last, after)
        if piece < stop:  # other sequences than decode sequences have no pieces
            length = tl.load(lengths + sequence).to(tl.int32)
            origin = first_visible(length - 1, window, chunk)
            token = tl.load(starts + sequence).to(tl.int64)
            heads = own_heads + unknown_zero(piece)
            query_rows = query + token * query_token + heads[:, None] * query_head
            main, rest = _query(query_rows, mine, MAIN, REST, VALUE, KEY)
            block_table = table + sequence * table_row
            chosen = selected
            if selected is not None:
                block_table = table + tl.load(owners + sequence).to(tl.int64) * table_row
                chosen = selected + tl.full((), sequence, tl.int64) * selected_row
            best, total, sums = _walk(
                main, rest, tl.zeros((ROWS,), tl.int32) + length - 1, heads,
                origin + (piece - before) * PIECE,
                tl.minimum(origin + (stop - before) * PIECE, length),
                tl.full((ROWS,), float("-inf"), tl.float32), tl.zeros((ROWS,), tl.float32),
                tl.zeros((ROWS, MAIN), tl.float32),
                cache + kv_head * cache_head, cache_block, cache_vector, cache_slot,
                block_table, chosen, window, chunk, scale, softcap, alibi, bias, reach,
                BLOCK_SIZE, MAIN, REST, VALUE, KEY, LATENT, CAUSAL, REACHES, CAPPED, TILE, WIDE,
            )  # fmt: skip
            row = out + token * out_token
            first = before // share
            num_partials = (after - 1) // share + 1 - first
            if num_partials == 1:
                at = row + heads[:, None] * out_head
                _write(best, total, sums, sinks, at, heads, mine, VALUE, MAIN)
            else:
                index = (program + sequence).to(tl.int64) * all_heads + heads
                sums_at = sums_out + index[:, None] * MAIN + element[None, :]
                tl.store(sums_at, sums, mask=mine[:, None])
                tl.store(scales_out + index * 2, best, mask=mine)
                tl.store(scales_out + index * 2 + 1, total, mask=mine)
                tl.debug_barrier()  # the stores of all threads come before the arrival
                arrival = arrivals + sequence * tl.num_programs(1) + tl.program_id(1)
                arrived = tl.atomic_add(arrival, 1, sem="acq_rel")
                if arrived == num_partials - 1:
                    tl.store(arrival, 0)  # for the next layer
                    local_head = part + tl.arange(0, HEADS)
                    is_head = local_head < GROUP
                    head = tl.where(is_head, kv_head * GROUP + local_head, 0) + unknown_zero(piece)
                    for start in range(0, MAIN, COLUMNS):
                        merged_best, merged_total, merged_sums = _merge(
                            sums_out, scales_out, first, first + num_partials, sequence, head,
                            is_head, all_heads, start, HEADS, MAIN, PARTIALS, COLUMNS,
                        )  # fmt: skip
                        _write(
                            merged_best, merged_total, merged_sums, sinks,
                            row + head[:, None] * out_head + start, head, is_head, VALUE - start,
                            COLUMNS,
                        )  # fmt: skip
        piece = stop
        sequence += 1


@triton.jit(do_not_specialize=LENGTHS)
def _attend(
    query, query_token, query_head, out, out_token, out_head, sinks, num_seqs,
    cache, cache_block, cache_vector, cache_slot, cache_head, table, table_row, starts, lengths,
    selected, owners, selected_row, window, chunk, scale, softcap, alibi, bias, reach,
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
        query_rows = (
            query
            + (start + token).to(tl.int64)[:, None] * query_token
            + heads[:, None] * query_head
        )
        main, rest = _query(query_rows, mine, MAIN, REST, VALUE, KEY)
        first = 0
        end = length
        if CAUSAL:
            first = first_visible(length - count + begin, window, chunk)
            end = length - count + tl.minimum(begin + QUERIES, count)
        block_table = table + low * table_row
        chosen = selected
        if selected is not None:
            block_table = table + tl.load(owners + low).to(tl.int64) * table_row
            chosen = selected + tl.full((), low, tl.int64) * selected_row
        best, total, sums = _walk(
            main, rest, positions, heads, first, end,
            tl.full((ROWS,), float("-inf"), tl.float32), tl.zeros((ROWS,), tl.float32),
            tl.zeros((ROWS, MAIN), tl.float32),
            cache + kv_head * cache_head, cache_block, cache_vector, cache_slot,
            block_table, chosen, window, chunk, scale, softcap, alibi, bias, reach,
            BLOCK_SIZE, MAIN, REST, VALUE, KEY, LATENT, CAUSAL, REACHES, CAPPED, TILE, WIDE,
        )  # fmt: skip
        at = out + (start + token).to(tl.int64)[:, None] * out_token + heads[:, None] * out_head
        _write(best, total, sums, sinks, at, heads, mine, VALUE, MAIN)
