"""Chunked scans of state-space and delta-rule layers: matrix products within chunks.

For long sequences, instead of the sequential scan. Everything is computed in float32.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import MIN_DOT_SIZE, next_power_of_2, wide_precision

Tensor = torch.Tensor

CHUNK: Final = 16
"""Tokens per chunk of a state-space layer."""
CORRECTED: Final = 16
"""Tokens per chunk of the delta rule, which are corrected one after the other."""
VALUES: Final = 32
"""Value elements per program."""
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
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, write: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the result of `sequential_scan.delta_scan`, for a decay per head: [n, length,
    heads].
    """
    n, length, heads, value_size = value.shape
    key_heads, key_size = key.shape[2:]
    out = torch.empty(value.shape, dtype=torch.float32, device=value.device)
    left = torch.empty(state.shape, dtype=torch.float32, device=value.device)
    if left.numel():
        _delta_chunks[n, heads, triton.cdiv(value_size, VALUES)](
            query, *query.stride()[:3], key, *key.stride()[:3], value, *value.stride()[:3],
            decay, *decay.stride(), write, *write.stride(), state.contiguous(), left, out, length,
            heads // key_heads,
            KEY=key_size, VALUE=value_size, BLOCK=next_power_of_2(key_size, MIN_DOT_SIZE),
            VALUES=VALUES, CHUNK=CORRECTED, PRECISION=wide_precision(), num_warps=4,
        )  # fmt: skip
    return out, left


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
def _between(left, CHUNK: tl.constexpr):
    """Return the decay between tokens, [later, earlier], from cumulative logarithms."""
    token = tl.arange(0, CHUNK)
    return tl.exp(
        tl.where(token[:, None] >= token[None, :], left[:, None] - left[None, :], float("-inf"))
    )


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
    state_index = ((row * tl.num_programs(1) + head) * HEAD + value[:, None]) * SIZE + element[
        None, :
    ]
    held = tl.load(state + state_index, mask=known, other=0.0).to(tl.float32)
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
        moved = (
            tl.load(x + token[:, None] * x_token, mask=mine, other=0.0).to(tl.float32)
            * move[:, None]
        )
        written = tl.load(write + token[:, None] * write_token, mask=own, other=0.0)
        reads = tl.load(read + token[:, None] * read_token, mask=own, other=0.0)
        fallen = tl.cumsum(move * falls, 0)
        last = tl.sum(move * falls)
        weights = between_stored(reads, written, PRECISION)
        before = tl.dot(reads.to(tl.float32), tl.trans(held), input_precision=PRECISION)
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
        held = tl.dot(
            tl.trans(remaining),
            written.to(tl.float32),
            held * tl.exp(last),
            input_precision=PRECISION,
        )
    tl.store(left + state_index, held, mask=known)


@triton.jit(do_not_specialize=(*LENGTHS, "decay_row", "write_row"))
def _delta_chunks(
    query, query_row, query_token, query_head, key, key_row, key_token, key_head,
    value, value_row, value_token, value_head, decay, decay_row, decay_token, decay_head,
    write, write_row, write_token, write_head, state, left, out, length, each,
    KEY: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, VALUES: tl.constexpr,
    CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: some value elements of a head of one sequence."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    element = tl.arange(0, BLOCK)
    column = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    known = (element < KEY)[:, None] & (column < VALUE)[None, :]
    state_index = ((row * tl.num_programs(1) + head) * KEY + element[:, None]) * VALUE + column[
        None, :
    ]
    held = tl.load(state + state_index, mask=known, other=0.0).to(tl.float32)
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
        wide_keys = keys.to(tl.float32)
        wrong = (v - grown * tl.dot(wide_keys, held, input_precision=PRECISION)) * share
        # A token corrects what those before it have written; itself it has corrected once they
        # have.
        overlaps = between_stored(keys, keys, PRECISION) * between * share
        for corrected in range(1, CHUNK):
            here = (number == corrected)[:, None]
            of_earlier = tl.sum(tl.where(here & (number < corrected)[None, :], overlaps, 0.0), 0)
            wrong -= tl.where(here, tl.sum(of_earlier[:, None] * wrong, 0)[None, :], 0.0)
        reads = between_stored(queries, keys, PRECISION) * between
        before = grown * tl.dot(queries.to(tl.float32), held, input_precision=PRECISION)
        to = (
            out
            + ((row * length + token[:, None]) * tl.num_programs(1) + head) * VALUE
            + column[None, :]
        )
        tl.store(to, tl.dot(reads, wrong, before, input_precision=PRECISION), mask=mine)
        held = tl.dot(
            tl.trans(wide_keys * tl.exp(last - fallen)[:, None]),
            wrong,
            held * tl.exp(last),
            input_precision=PRECISION,
        )
    tl.store(left + state_index, held, mask=known)
