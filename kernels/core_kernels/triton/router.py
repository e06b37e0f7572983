"""The choice of experts in one launch: scores, groups, the best experts and their weights."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from core_kernels.triton.launching import next_power_of_2, sigmoid

Tensor = torch.Tensor

MAX_EXPERTS: Final = 1024
SCORES: Final = {"softmax": 0, "sigmoid": 1, "sqrt_softplus": 2}


def choose_experts(
    logits: Tensor,
    bias: Tensor | None,
    score: str,
    top_k: int,
    groups: tuple[int, int, int, float],
    renormalize: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return expert weights float32 and experts int64, [n, top_k] each, for float32 logits.

    `score` is a key of `SCORES`, `bias` [experts] is added for the choice only. `groups`: their
    number, that of the best ones, that of the scores which rank one, and the score of experts
    outside of the best ones. Of equal experts the first ones are chosen.
    """
    count, experts = logits.shape
    shares = torch.empty((count, top_k), dtype=torch.float32, device=logits.device)
    chosen = torch.empty((count, top_k), dtype=torch.int64, device=logits.device)
    num_groups, best_groups, ranked, outside = groups
    if count:
        _choose[(count,)](
            logits, logits.stride(0), logits.stride(1), bias, shares, chosen, outside, scale,
            EXPERTS=experts, BLOCK=next_power_of_2(experts), TOP_K=top_k, GROUPS=num_groups,
            BEST=best_groups, RANKED=ranked, GROUP_BLOCK=next_power_of_2(num_groups),
            SCORE=SCORES[score], NORMED=renormalize,
            num_warps=1 if experts <= 256 else 4,
        )  # fmt: skip
    return shares, chosen


@triton.jit
def _worth(scores, mine, expert, RANKED: tl.constexpr):
    """Return the sum of the best scores of a group."""
    left = tl.where(mine, scores, float("-inf"))
    worth = 0.0
    for _ in tl.static_range(RANKED):
        worth += tl.max(left)
        left = tl.where(expert == tl.argmax(left, 0), float("-inf"), left)
    return worth


@triton.jit(do_not_specialize=["outside", "scale"])
def _choose(
    logits, logits_row, logits_element, bias, shares, chosen, outside, scale,
    EXPERTS: tl.constexpr, BLOCK: tl.constexpr, TOP_K: tl.constexpr, GROUPS: tl.constexpr,
    BEST: tl.constexpr, RANKED: tl.constexpr, GROUP_BLOCK: tl.constexpr, SCORE: tl.constexpr,
    NORMED: tl.constexpr,
):  # fmt: skip
    """One program: a token."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    known = expert < EXPERTS
    at = logits + token * logits_row + expert * logits_element
    read = tl.load(at, mask=known, other=float("-inf"))
    if SCORE == 0:
        weights = tl.exp(read - tl.max(read))
        scores = weights / tl.sum(weights)
    elif SCORE == 1:
        scores = sigmoid(read)
    else:  # log(1 + exp(x)) without overflow, and precise for small exp(x)
        small = tl.exp(-tl.abs(read))
        more = 1.0 + small
        precise = tl.log(more) * (small / tl.where(more == 1.0, 1.0, more - 1.0))
        softplus = tl.maximum(read, 0.0) + tl.where(more == 1.0, small, precise)
        scores = tl.sqrt(softplus)
    left = scores
    if bias is not None:
        left += tl.load(bias + expert, mask=known, other=0.0).to(tl.float32)
    # A number that is none is never chosen: experts stay valid.
    left = tl.where(known & (left == left), left, float("-inf"))
    if GROUPS > 1:
        own = expert // (EXPERTS // GROUPS)
        group = tl.arange(0, GROUP_BLOCK)
        worth = tl.full((GROUP_BLOCK,), float("-inf"), tl.float32)
        for number in tl.static_range(GROUPS):
            worth = tl.where(group == number, _worth(left, own == number, expert, RANKED), worth)
        inside = expert < 0
        for _ in tl.static_range(BEST):
            best = tl.argmax(worth, 0)
            inside = inside | (own == best)
            worth = tl.where(group == best, float("-inf"), worth)
        left = tl.where(inside, left, tl.where(known, outside, float("-inf")))
    number = tl.arange(0, BLOCK)
    found = tl.zeros((BLOCK,), tl.int32)
    taken = tl.zeros((BLOCK,), tl.float32)
    for index in tl.static_range(TOP_K):
        best = tl.argmax(left, 0)
        found = tl.where(number == index, best, found)
        share = tl.sum(tl.where(expert == best, scores, 0.0))
        taken = tl.where(number == index, share, taken)
        left = tl.where(expert == best, float("-inf"), left)
    if NORMED:
        taken = taken / tl.sum(taken)
    tl.store(shares + token * TOP_K + number, taken * scale, mask=number < TOP_K)
    tl.store(chosen + token * TOP_K + number, found.to(tl.int64), mask=number < TOP_K)
