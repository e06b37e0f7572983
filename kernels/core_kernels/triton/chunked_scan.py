"""Chunked scans of state-space and delta-rule layers: matrix products within chunks.

For long sequences, instead of the sequential scan. Everything is computed in float32.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import (
    INTERPRETED,
    L2_EPS,
    MIN_DOT_SIZE,
    next_power_of_2,
    unknown_zero,
    wide_precision,
)
from core_kernels.triton.registers import register_options

Tensor = torch.Tensor

CHUNK: Final = 16
"""Tokens per chunk of a state-space layer."""
CORRECTED: Final = 16
"""Tokens per chunk of the delta rule, which are corrected one after the other."""
VALUES: Final = 32
"""Value elements per program."""
FROM_SHARED: Final = (90, 100)
"""Compute capabilities with matrix units that read shared memory, times ten."""
LENGTHS: Final = ("length",)
"""Arguments that kernels are not specialized for; also head strides, which are multiples of the
length.
"""


def ssd_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the result of `sequential_scan.ssd_scan`."""
    n, length, heads, head_size = x.shape
    groups, size = write.shape[2:]
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    left = torch.empty(state.shape, dtype=torch.float32, device=x.device)
    if left.numel():
        _ssd_chunks[n, heads, triton.cdiv(head_size, VALUES)](
            x, *x.stride()[:3], step, *step.stride(), decay, write, *write.stride()[:3], read,
            *read.stride()[:3],
            state.contiguous(), left, out, length, heads // groups,
            HEAD=head_size, SIZE=size, BLOCK=next_power_of_2(size, MIN_DOT_SIZE), VALUES=VALUES,
            CHUNK=CHUNK, PRECISION=wide_precision(), num_warps=4,
        )  # fmt: skip
    return out, left


def delta_scan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    write: Tensor,
    state: Tensor,
    query_scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the result of `sequential_scan.delta_scan`, for a decay per head: [n, length,
    heads].
    """
    n, length, heads, value_size = value.shape
    key_heads, key_size = key.shape[2:]
    out = torch.empty(value.shape, dtype=torch.float32, device=value.device)
    left = torch.empty(state.shape, dtype=torch.float32, device=value.device)
    if left.numel():
        values = _delta_values()
        _delta_chunks[n, heads, triton.cdiv(value_size, values)](
            query, *query.stride()[:3], key, *key.stride()[:3], value, *value.stride()[:3],
            decay, *decay.stride(), write, *write.stride(), state.contiguous(), left, out, length,
            heads // key_heads, query_scale or 0.0,
            KEY=key_size, VALUE=value_size, BLOCK=next_power_of_2(key_size, MIN_DOT_SIZE),
            VALUES=values, CHUNK=CORRECTED, NORMED=query_scale is not None,
            PRECISION=wide_precision(), num_warps=4, **register_options("_delta_chunks", 4),
        )  # fmt: skip
    return out, left


def _delta_values() -> int:
    """Return the value elements of a program of the delta rule.

    Matrix units that read operands from registers leave room for half as many.
    """
    if INTERPRETED:
        return VALUES
    target = triton.runtime.driver.active.get_current_target()
    from_registers = target.backend == "cuda" and target.arch not in FROM_SHARED
    return VALUES // 2 if from_registers else VALUES


@triton.jit
def between_stored(left, right, PRECISION: tl.constexpr):
    """Return left @ right.T of stored numbers in float32: of 16 bits their products are exact."""
    if PRECISION == "ieee" or left.dtype == tl.float32:
        return tl.dot(
            left.to(tl.float32), tl.trans(right.to(tl.float32)), input_precision=PRECISION
        )
    else:
        return tl.dot(left, tl.trans(right))


@triton.jit
def _parts(wide):
    """Return three bfloat16 numbers that add up to the float32 number."""
    high = wide.to(tl.bfloat16)
    rest = wide - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def stored_by_wide(stored, wide, acc, PRECISION: tl.constexpr):
    """Return acc + stored @ wide in float32.

    Products of bfloat16 take half of the registers and of the time of those of float32.
    """
    if PRECISION != "ieee" and stored.dtype == tl.bfloat16:
        high, middle, low = _parts(wide)
        acc = tl.dot(stored, low, acc)
        acc = tl.dot(stored, middle, acc)
        return tl.dot(stored, high, acc)
    else:
        return tl.dot(stored.to(tl.float32), wide, acc, input_precision=PRECISION)


@triton.jit
def wide_by_stored(wide, stored, acc, PRECISION: tl.constexpr):
    """Return acc + wide @ stored in float32, as `stored_by_wide`."""
    if PRECISION != "ieee" and stored.dtype == tl.bfloat16:
        high, middle, low = _parts(wide)
        acc = tl.dot(low, stored, acc)
        acc = tl.dot(middle, stored, acc)
        return tl.dot(high, stored, acc)
    else:
        return tl.dot(wide, stored.to(tl.float32), acc, input_precision=PRECISION)


@triton.jit
def _reciprocal_length(stored):
    """Return 1 / sqrt(sum of squares of each row)."""
    wide = stored.to(tl.float32)
    return tl.rsqrt(tl.sum(wide * wide, 1) + L2_EPS)


@triton.jit
def _between(left, CHUNK: tl.constexpr):
    """Return the decay between tokens, [later, earlier], from cumulative logarithms."""
    token = tl.arange(0, CHUNK)
    return tl.exp(
        tl.where(token[:, None] >= token[None, :], left[:, None] - left[None, :], float("-inf"))
    )


@triton.jit
def _state_index(row, head, outer, inner, OUTER: tl.constexpr, INNER: tl.constexpr):
    """Return where elements [outer, inner] of a head's state [OUTER, INNER] are."""
    first = (row * tl.num_programs(1) + head) * OUTER
    return (first + outer[:, None]) * INNER + inner[None, :]


@triton.jit(do_not_specialize=(*LENGTHS, "step_row"))
def _ssd_chunks(
    x, x_row, x_token, x_head, step, step_row, step_token, step_head, decay,
    write, write_row, write_token, write_group, read, read_row, read_token, read_group,
    state, left, out, length, each,
    HEAD: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, VALUES: tl.constexpr,
    CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: some elements of a head of one sequence."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    value = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    element = tl.arange(0, BLOCK)
    known = (value < HEAD)[:, None] & (element < SIZE)[None, :]
    falls = tl.load(decay + head).to(tl.float32)
    read_from = state + _state_index(row, head, value, element, HEAD, SIZE)
    held = tl.load(read_from, mask=known, other=0.0).to(tl.float32)
    x += row * x_row + head * x_head + value[None, :]
    step += row * step_row + head * step_head
    write += row * write_row + head // each * write_group + element[None, :]
    read += row * read_row + head // each * read_group + element[None, :]
    for at in range(0, length, CHUNK):
        token = at + tl.arange(0, CHUNK)
        there = (token < length)[:, None]
        own = there & (element < SIZE)[None, :]
        mine = there & (value < HEAD)[None, :]
        move = tl.load(step + token * step_token, mask=token < length, other=0.0).to(tl.float32)
        written = tl.load(write + token[:, None] * write_token, mask=own, other=0.0)
        reads = tl.load(read + token[:, None] * read_token, mask=own, other=0.0)
        fallen = tl.cumsum(move * falls, 0)
        last = tl.sum(move * falls)
        weights = between_stored(reads, written, PRECISION)
        none = tl.zeros((CHUNK, VALUES), tl.float32)
        before = stored_by_wide(reads, tl.trans(held), none, PRECISION)
        moved = (
            tl.load(x + token[:, None] * x_token, mask=mine, other=0.0).to(tl.float32)
            * move[:, None]
        )
        found = tl.dot(
            weights * _between(fallen, CHUNK),
            moved,
            before * tl.exp(fallen)[:, None],
            input_precision=PRECISION,
        )
        to = (
            out
            + ((row * length + token[:, None]) * tl.num_programs(1) + head) * HEAD
            + value[None, :]
        )
        tl.store(to, found, mask=mine)
        remaining = moved * tl.exp(last - fallen)[:, None]
        held = wide_by_stored(tl.trans(remaining), written, held * tl.exp(last), PRECISION)
    row += unknown_zero(length)
    tl.store(left + _state_index(row, head, value, element, HEAD, SIZE), held, mask=known)


@triton.jit(do_not_specialize=(*LENGTHS, "decay_row", "write_row", "query_scale"))
def _delta_chunks(
    query, query_row, query_token, query_head, key, key_row, key_token, key_head,
    value, value_row, value_token, value_head, decay, decay_row, decay_token, decay_head,
    write, write_row, write_token, write_head, state, left, out, length, each, query_scale,
    KEY: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, VALUES: tl.constexpr,
    CHUNK: tl.constexpr, NORMED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: some value elements of a head of one sequence."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    element = tl.arange(0, BLOCK)
    column = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    known = (element < KEY)[:, None] & (column < VALUE)[None, :]
    read_from = state + _state_index(row, head, element, column, KEY, VALUE)
    held = tl.load(read_from, mask=known, other=0.0).to(tl.float32)
    query += row * query_row + head // each * query_head + element[None, :]
    key += row * key_row + head // each * key_head + element[None, :]
    value += row * value_row + head * value_head + column[None, :]
    decay += row * decay_row + head * decay_head
    write += row * write_row + head * write_head
    number = tl.arange(0, CHUNK)
    for at in range(0, length, CHUNK):
        token = at + number
        there = token < length
        own = there[:, None] & (element < KEY)[None, :]
        mine = there[:, None] & (column < VALUE)[None, :]
        keys = tl.load(key + token[:, None] * key_token, mask=own, other=0.0)
        queries = tl.load(query + token[:, None] * query_token, mask=own, other=0.0)
        v = tl.load(value + token[:, None] * value_token, mask=mine, other=0.0).to(tl.float32)
        falls = tl.load(decay + token * decay_token, mask=there, other=0.0).to(tl.float32)
        share = tl.load(write + token * write_token, mask=there, other=0.0).to(tl.float32)[:, None]
        fallen = tl.cumsum(falls, 0)
        last = tl.sum(falls)
        between = _between(fallen, CHUNK)
        grown = tl.exp(fallen)[:, None]
        none = tl.zeros((CHUNK, VALUES), tl.float32)
        # Factors of rows stay outside of products, which then are of stored numbers.
        key_factor = tl.full((CHUNK,), 1.0, tl.float32)
        query_factor = key_factor
        if NORMED:
            key_factor = _reciprocal_length(keys)
            query_factor = _reciprocal_length(queries) * query_scale
        by_key = key_factor[:, None]
        found = stored_by_wide(keys, held, none, PRECISION)
        wrong = (v - grown * by_key * found) * share
        # A token corrects what those before it have written; itself it has corrected once they
        # have.
        between *= key_factor[None, :]
        overlaps = between_stored(keys, keys, PRECISION) * between * by_key * share
        for corrected in range(1, CHUNK):
            here = (number == corrected)[:, None]
            of_earlier = tl.sum(tl.where(here & (number < corrected)[None, :], overlaps, 0.0), 0)
            wrong -= tl.where(here, tl.sum(of_earlier[:, None] * wrong, 0)[None, :], 0.0)
        by_query = query_factor[:, None]
        before = grown * by_query * stored_by_wide(queries, held, none, PRECISION)
        reads = between_stored(queries, keys, PRECISION) * between * by_query
        to = (
            out
            + ((row * length + token[:, None]) * tl.num_programs(1) + head) * VALUE
            + column[None, :]
        )
        tl.store(to, tl.dot(reads, wrong, before, input_precision=PRECISION), mask=mine)
        remaining = wrong * tl.exp(last - fallen)[:, None] * by_key
        held = stored_by_wide(tl.trans(keys), remaining, held * tl.exp(last), PRECISION)
    row += unknown_zero(length)
    tl.store(left + _state_index(row, head, element, column, KEY, VALUE), held, mask=known)
