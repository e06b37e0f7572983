"""Argmax, truncation (top-k, top-p) and sampling from logits.

Many programs read a row in spans. Span sums are float64 in vocabulary order, so a seed gives the
same token as in the reference. Truncation does not sort: it finds the smallest remaining logit four
bits at a time, from the weight above sixteen candidates.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import exponential, next_power_of_2

Tensor = torch.Tensor

SPAN: Final = 2048
CHUNK: Final = 1024
"""Logits that are compared with sixteen candidates at once."""


def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return maximum logit and token per row of logits [n, vocab]; ties: lowest index; a NaN
    wins.
    """
    rows = len(logits)
    values = logits.new_empty(rows)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        tops, top_tokens = _tops(logits)
        spans = tops.shape[1]
        _argmax[(rows,)](
            tops, top_tokens, values, tokens, spans, BLOCK=next_power_of_2(spans), num_warps=1
        )
    return values, tokens


def sample(logits: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Return one token per row, int64 [n], sampled from logits [n, vocab] by seed and position."""
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        tops, top_tokens = _tops(logits)
        spans = tops.shape[1]
        block = next_power_of_2(spans)
        sums = torch.empty((rows, spans), dtype=torch.float64, device=logits.device)
        _weigh[rows, spans](
            logits, logits.stride(0), tops, sums, vocab, spans, SPAN=SPAN, BLOCK=block, num_warps=4
        )
        _sample[(rows,)](
            logits, logits.stride(0), tops, top_tokens, sums, seeds, positions, tokens, vocab,
            spans,
            SPAN=SPAN, BLOCK=block, num_warps=4,
        )  # fmt: skip
    return tokens


def truncate(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Set logits [n, vocab] outside `top_k` int64 [n] (0: all) and `top_p` float32 [n] to -inf.

    Works in index on float32. Ties with the last remaining logit remain too; the maximum always
    remains.
    """
    rows, vocab = logits.shape
    if rows:
        _truncate[(rows,)](logits, logits.stride(0), top_k, top_p, vocab, CHUNK=CHUNK, num_warps=8)
    return logits


def _tops(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum of each span and its token, [n, spans]."""
    rows, vocab = logits.shape
    spans = triton.cdiv(vocab, SPAN)
    tops = logits.new_empty((rows, spans))
    top_tokens = torch.empty((rows, spans), dtype=torch.int64, device=logits.device)
    _top[rows, spans](
        logits, logits.stride(0), tops, top_tokens, vocab, spans, SPAN=SPAN, num_warps=4
    )
    return tops, top_tokens


@triton.jit
def _argmax_of(values, mine):
    """Return the index of the maximum: a NaN wins, ties go to the lowest index."""
    nan = (values != values) & mine
    index = tl.arange(0, values.shape[0])
    first_nan = tl.min(tl.where(nan, index, values.shape[0]))
    highest = tl.max(tl.where(mine & (values == values), values, float("-inf")))
    first = tl.min(tl.where(mine & (values == highest), index, values.shape[0] - 1))
    return tl.where(first_nan < values.shape[0], first_nan, first)


@triton.jit
def _top(logits, row_stride, tops, top_tokens, vocab, spans, SPAN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    span = tl.program_id(1)
    token = span * SPAN + tl.arange(0, SPAN)
    values = tl.load(logits + row * row_stride + token, mask=token < vocab, other=float("-inf"))
    index = span * SPAN + _argmax_of(values, token < vocab)
    tl.store(tops + row * spans + span, tl.load(logits + row * row_stride + index))
    tl.store(top_tokens + row * spans + span, index.to(tl.int64))


@triton.jit
def _argmax(tops, top_tokens, values, tokens, spans, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    span = tl.arange(0, BLOCK)
    top = tl.load(tops + row * spans + span, mask=span < spans, other=float("-inf"))
    at = row * spans + _argmax_of(top, span < spans)
    tl.store(values + row, tl.load(tops + at))
    tl.store(tokens + row, tl.load(top_tokens + at))


@triton.jit
def _weights(logits, row_stride, row, span, highest, vocab, SPAN: tl.constexpr):
    """Return exp(logit - highest) of a span in float64; zeros for a fully masked row."""
    token = span * SPAN + tl.arange(0, SPAN)
    values = tl.load(logits + row * row_stride + token, mask=token < vocab, other=float("-inf")).to(
        tl.float32
    )
    return exponential(values, highest).to(tl.float64)


@triton.jit
def _highest_of(tops, row, spans, BLOCK: tl.constexpr):
    span = tl.arange(0, BLOCK)
    return tl.max(
        tl.load(tops + row * spans + span, mask=span < spans, other=float("-inf")).to(tl.float32)
    )


@triton.jit
def _weigh(logits, row_stride, tops, sums, vocab, spans, SPAN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    span = tl.program_id(1)
    highest = _highest_of(tops, row, spans, BLOCK)
    tl.store(
        sums + row * spans + span,
        tl.sum(_weights(logits, row_stride, row, span, highest, vocab, SPAN)),
    )


@triton.jit
def _mixed(x):
    """Return the SplitMix64 output of a state."""
    x += 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _uniform(seed, position):
    """Return the number in [0, 1) for a seed and a position."""
    mixed = _mixed(_mixed(seed.to(tl.uint64)) + position.to(tl.uint64) * 0x9E3779B97F4A7C15)
    return (mixed >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _sample(
    logits, row_stride, tops, top_tokens, sums, seeds, positions, tokens, vocab, spans,
    SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    span = tl.arange(0, BLOCK)
    of_spans = tl.load(sums + row * spans + span, mask=span < spans, other=0.0)
    ends = tl.cumsum(of_spans, 0)
    target = _uniform(tl.load(seeds + row), tl.load(positions + row)) * tl.sum(of_spans)
    chosen = tl.minimum(tl.sum((ends <= target).to(tl.int32)), spans - 1)
    before = tl.max(tl.where(span < chosen, ends, 0.0))
    highest = _highest_of(tops, row, spans, BLOCK)
    weights = _weights(logits, row_stride, row, chosen, highest, vocab, SPAN)
    passed = tl.sum((tl.cumsum(weights, 0) <= target - before).to(tl.int32))
    token = tl.minimum(chosen * SPAN + tl.minimum(passed, SPAN - 1), vocab - 1)
    # Rounding may pass the last possible token; then take the maximum.
    top = tl.load(tops + row * spans + span, mask=span < spans, other=float("-inf"))
    fallback = tl.load(top_tokens + row * spans + _argmax_of(top, span < spans))
    possible = tl.load(logits + row * row_stride + token).to(tl.float32) > float("-inf")
    tl.store(tokens + row, tl.where(possible, token.to(tl.int64), fallback))


@triton.jit
def float_order(values):
    """Return integers in the order of these float32."""
    bits = values.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def least_order(
    logits, vocab, least, highest, required, WEIGHED: tl.constexpr, CHUNK: tl.constexpr
):
    """Return the largest threshold such that the logits from it (and from `least`) count or weigh
    at least `target`.
    """
    found = tl.full((1,), -(1 << 31), tl.int64)
    candidate = tl.arange(0, 16).to(tl.int64)
    for digit in range(8):
        step = candidate << (28 - 4 * digit)
        above = tl.zeros((16,), tl.float64)
        for at in range(0, vocab, CHUNK):
            token = at + tl.arange(0, CHUNK)
            values = tl.load(logits + token, mask=token < vocab, other=float("-inf"))
            order = float_order(values)
            mine = (token < vocab) & (order >= least)
            weight = tl.where(mine, 1.0, 0.0)
            if WEIGHED:
                weight = tl.where(mine, tl.exp(values - highest), 0.0)
            reached = order[:, None] >= (found + step)[None, :]
            above += tl.sum(tl.where(reached, weight[:, None], 0.0), 0).to(tl.float64)
        # Candidate 0 always reaches it: it is the current threshold.
        found += tl.max(tl.where((above >= required) | (candidate == 0), step, 0))
    return tl.max(found)


@triton.jit
def _truncate(logits, row_stride, top_k, top_p, vocab, CHUNK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    count = tl.load(top_k + row)
    share = tl.load(top_p + row).to(tl.float64)
    narrow = (count > 0) & (count < vocab)
    if narrow | (share < 1.0):
        least = tl.full((), -(1 << 31), tl.int64)
        if narrow:
            least = least_order(logits, vocab, least, 0.0, count.to(tl.float64), False, CHUNK)
        if share < 1.0:
            highest = tl.full((), float("-inf"), tl.float32)
            for at in range(0, vocab, CHUNK):
                token = at + tl.arange(0, CHUNK)
                highest = tl.maximum(
                    highest,
                    tl.max(tl.load(logits + token, mask=token < vocab, other=float("-inf"))),
                )
            total = tl.zeros((), tl.float64)
            for at in range(0, vocab, CHUNK):
                token = at + tl.arange(0, CHUNK)
                values = tl.load(logits + token, mask=token < vocab, other=float("-inf"))
                total += tl.sum(
                    tl.where(float_order(values) >= least, tl.exp(values - highest), 0.0)
                ).to(tl.float64)
            least = tl.maximum(
                least, least_order(logits, vocab, least, highest, total * share, True, CHUNK)
            )
            least = tl.minimum(least, float_order(highest))
        for at in range(0, vocab, CHUNK):
            token = at + tl.arange(0, CHUNK)
            values = tl.load(logits + token, mask=token < vocab, other=float("-inf"))
            tl.store(
                logits + token, float("-inf"), mask=(token < vocab) & (float_order(values) < least)
            )
