"""Sequential scans of state-space and delta-rule layers: the state stays in registers.

Everything is computed in float32. Long sequences are faster with `chunked_scan`.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import L2_EPS, next_power_of_2, sigmoid

Tensor = torch.Tensor

CHANNELS: Final = 32
VALUES: Final = 32
"""Channels or value elements per program."""
LENGTHS: Final = ("length",)
"""Arguments that kernels are not specialized for; also head strides, which are multiples of the
length.
"""


def causal_conv(
    x: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activate: bool = True,
    dilation: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return the causal convolution of x [n, length, channels], and the inputs for the next tokens.

    `state` [n, (kernel - 1) * dilation, channels] has the inputs before x, `weight` is [kernel,
    channels], its rows `dilation` tokens apart; `activate` applies SiLU.
    """
    n, length, channels = x.shape
    kernel = weight.shape[0]
    before = (kernel - 1) * dilation
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel():
        block = min(128, next_power_of_2(channels))
        _conv[n * length, triton.cdiv(channels, block)](
            x, x.stride(0), x.stride(1), state, state.stride(0), state.stride(1), weight,
            weight.stride(0), bias, out,
            length, channels, KERNEL=kernel, DILATION=dilation, BLOCK=block, ACTIVATE=activate,
            num_warps=2,
        )  # fmt: skip
    seen = torch.cat((state.to(x.dtype), x[:, max(0, length - before) :]), dim=1)
    return out, seen[:, seen.shape[1] - before :]


def selective_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the output of a selective state space [n, length, channels], and the final states.

    x and `step` are [n, length, channels], `decay` [channels, state_size] is negative, `write` and
    `read` [n, length, state_size], `state` [n, channels, state_size].
    """
    n, length, channels = x.shape
    size = decay.shape[1]
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    left = torch.empty(state.shape, dtype=torch.float32, device=x.device)
    if left.numel():
        _selective[n, triton.cdiv(channels, CHANNELS)](
            x, x.stride(0), x.stride(1), step, step.stride(0), step.stride(1), decay.contiguous(),
            write, write.stride(0), write.stride(1), read, read.stride(0), read.stride(1),
            state.contiguous(), left, out,
            length, channels, SIZE=size, BLOCK=next_power_of_2(size), CHANNELS=CHANNELS,
            num_warps=2,
        )  # fmt: skip
    return out, left


def ssd_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the output of a multi-head state space [n, length, heads, head_size], and the final
    states.

    x is [n, length, heads, head_size], `step` [n, length, heads], `decay` [heads] is negative,
    `write` and `read` [n, length, groups, state_size], `state` [n, heads, head_size, state_size].
    """
    n, length, heads, head_size = x.shape
    groups, size = write.shape[2:]
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    left = torch.empty(state.shape, dtype=torch.float32, device=x.device)
    if left.numel():
        _ssd[n, heads, triton.cdiv(head_size, VALUES)](
            x, *x.stride()[:3], step, *step.stride(), decay, write, *write.stride()[:3], read,
            *read.stride()[:3],
            state.contiguous(), left, out, length, heads // groups,
            HEAD=head_size, SIZE=size, BLOCK=next_power_of_2(size), VALUES=VALUES, num_warps=2,
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
    """Return the output of the gated delta rule [n, length, heads, value_size], and the final
    states.

    query and key are [n, length, key_heads, key_size], shared by groups of value heads; `decay` [n,
    length, heads] or [n, length, heads, key_size] is <= 0; `write` [n, length, heads], `state` [n,
    heads, key_size, value_size]. `query_scale`: first normalise query and key to length 1, and
    scale the query; None: take them as they are.
    """
    n, length, heads, value_size = value.shape
    key_heads, key_size = key.shape[2:]
    out = torch.empty(value.shape, dtype=torch.float32, device=value.device)
    left = torch.empty(state.shape, dtype=torch.float32, device=value.device)
    by_channel = decay.dim() == 4
    if left.numel():
        _delta[n, heads, triton.cdiv(value_size, VALUES)](
            query, *query.stride()[:3], key, *key.stride()[:3], value, *value.stride()[:3],
            decay, *decay.stride()[:3], write, *write.stride(), state.contiguous(), left, out,
            length, heads // key_heads, query_scale or 0.0,
            KEY=key_size, VALUE=value_size, BLOCK=next_power_of_2(key_size), VALUES=VALUES,
            BY_CHANNEL=by_channel, NORMED=query_scale is not None, num_warps=2,
        )  # fmt: skip
    return out, left


@triton.jit(do_not_specialize=LENGTHS)
def _conv(
    x, x_row, x_token, state, state_row, state_token, weight, weight_row, bias, out, length,
    channels,
    KERNEL: tl.constexpr, DILATION: tl.constexpr, BLOCK: tl.constexpr, ACTIVATE: tl.constexpr,
):  # fmt: skip
    """One program: some channels of a token."""
    row = (tl.program_id(0) // length).to(tl.int64)
    token = tl.program_id(0) % length
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mine = channel < channels
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in range(KERNEL):
        at = token + (tap - (KERNEL - 1)) * DILATION + tl.zeros((BLOCK,), tl.int32)
        here = tl.load(
            x + row * x_row + at * x_token + channel, mask=mine & (at >= 0), other=0.0
        ).to(tl.float32)
        slot = at + (KERNEL - 1) * DILATION
        before = state + row * state_row + slot * state_token + channel
        # earlier inputs are next_power_of_2 to x's dtype
        earlier = (
            tl.load(before, mask=mine & (at < 0), other=0.0).to(x.dtype.element_ty).to(tl.float32)
        )
        total += (here + earlier) * tl.load(
            weight + tap * weight_row + channel, mask=mine, other=0.0
        ).to(tl.float32)
    if bias is not None:
        total += tl.load(bias + channel, mask=mine, other=0.0).to(tl.float32)
    if ACTIVATE:
        total *= sigmoid(total)
    tl.store(
        out + (row * length + token) * channels + channel, total.to(out.dtype.element_ty), mask=mine
    )


@triton.jit(do_not_specialize=LENGTHS)
def _selective(
    x, x_row, x_token, step, step_row, step_token, decay, write, write_row, write_token, read,
    read_row, read_token,
    state, left, out, length, channels, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """One program: some channels of a sequence."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    element = tl.arange(0, BLOCK)
    mine = channel < channels
    known = mine[:, None] & (element < SIZE)[None, :]
    falls = tl.load(decay + channel[:, None] * SIZE + element[None, :], mask=known, other=0.0).to(
        tl.float32
    )
    state_index = row * channels * SIZE + channel[:, None] * SIZE + element[None, :]
    held = tl.load(state + state_index, mask=known, other=0.0).to(tl.float32)
    for token in range(length):
        move = tl.load(
            step + row * step_row + token * step_token + channel, mask=mine, other=0.0
        ).to(tl.float32)
        moved = (
            tl.load(x + row * x_row + token * x_token + channel, mask=mine, other=0.0).to(
                tl.float32
            )
            * move
        )
        written = tl.load(
            write + row * write_row + token * write_token + element, mask=element < SIZE, other=0.0
        )
        queries = tl.load(
            read + row * read_row + token * read_token + element, mask=element < SIZE, other=0.0
        )
        held = (
            held * tl.exp(move[:, None] * falls) + moved[:, None] * written.to(tl.float32)[None, :]
        )
        found = tl.sum(held * queries.to(tl.float32)[None, :], 1)
        tl.store(out + (row * length + token) * channels + channel, found, mask=mine)
    tl.store(left + state_index, held, mask=known)


@triton.jit(do_not_specialize=(*LENGTHS, "step_row"))
def _ssd(
    x, x_row, x_token, x_head, step, step_row, step_token, step_head, decay,
    write, write_row, write_token, write_group, read, read_row, read_token, read_group,
    state, left, out, length, each,
    HEAD: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """One program: some elements of a head of a sequence."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    value = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    element = tl.arange(0, BLOCK)
    mine = value < HEAD
    known = mine[:, None] & (element < SIZE)[None, :]
    falls = tl.load(decay + head).to(tl.float32)
    state_index = ((row * tl.num_programs(1) + head) * HEAD + value[:, None]) * SIZE + element[
        None, :
    ]
    held = tl.load(state + state_index, mask=known, other=0.0).to(tl.float32)
    x += row * x_row + head * x_head + value
    step += row * step_row + head * step_head
    write += row * write_row + head // each * write_group + element
    read += row * read_row + head // each * read_group + element
    for token in range(length):
        move = tl.load(step + token * step_token).to(tl.float32)
        moved = tl.load(x + token * x_token, mask=mine, other=0.0).to(tl.float32) * move
        written = tl.load(write + token * write_token, mask=element < SIZE, other=0.0).to(
            tl.float32
        )
        queries = tl.load(read + token * read_token, mask=element < SIZE, other=0.0).to(tl.float32)
        held = held * tl.exp(move * falls) + moved[:, None] * written[None, :]
        found = tl.sum(held * queries[None, :], 1)
        tl.store(
            out + ((row * length + token) * tl.num_programs(1) + head) * HEAD + value,
            found,
            mask=mine,
        )
    tl.store(left + state_index, held, mask=known)


@triton.jit(do_not_specialize=(*LENGTHS, "decay_row", "write_row", "query_scale"))
def _delta(
    query, query_row, query_token, query_head, key, key_row, key_token, key_head,
    value, value_row, value_token, value_head, decay, decay_row, decay_token, decay_head,
    write, write_row, write_token, write_head, state, left, out, length, each, query_scale,
    KEY: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, VALUES: tl.constexpr,
    BY_CHANNEL: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """One program: some value elements of a head of a sequence."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    element = tl.arange(0, BLOCK)
    column = tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    mine = column < VALUE
    known = (element < KEY)[:, None] & mine[None, :]
    state_index = ((row * tl.num_programs(1) + head) * KEY + element[:, None]) * VALUE + column[
        None, :
    ]
    held = tl.load(state + state_index, mask=known, other=0.0).to(tl.float32)
    query += row * query_row + head // each * query_head + element
    key += row * key_row + head // each * key_head + element
    value += row * value_row + head * value_head + column
    decay += row * decay_row + head * decay_head
    write += row * write_row + head * write_head
    for token in range(length):
        if BY_CHANNEL:
            falls = tl.load(
                decay + token * decay_token + element, mask=element < KEY, other=0.0
            ).to(tl.float32)
            held *= tl.exp(falls)[:, None]
        else:
            held *= tl.exp(tl.load(decay + token * decay_token).to(tl.float32))
        k = tl.load(key + token * key_token, mask=element < KEY, other=0.0).to(tl.float32)
        q = tl.load(query + token * query_token, mask=element < KEY, other=0.0).to(tl.float32)
        v = tl.load(value + token * value_token, mask=mine, other=0.0).to(tl.float32)
        if NORMED:
            k *= tl.rsqrt(tl.sum(k * k) + L2_EPS)
            q *= tl.rsqrt(tl.sum(q * q) + L2_EPS) * query_scale
        wrong = (v - tl.sum(held * k[:, None], 0)) * tl.load(write + token * write_token).to(
            tl.float32
        )
        held += k[:, None] * wrong[None, :]
        found = tl.sum(held * q[:, None], 0)
        tl.store(
            out + ((row * length + token) * tl.num_programs(1) + head) * VALUE + column,
            found,
            mask=mine,
        )
    tl.store(left + state_index, held, mask=known)
