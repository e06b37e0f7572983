"""The choice of experts in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

import torch

Tensor = torch.Tensor


class ExpertGroups(NamedTuple):
    """Groups of consecutive experts; a token chooses experts of its best groups."""

    num_groups: int = 1
    """Number of groups."""
    top_k: int = 1
    """Number of best groups."""
    num_ranked: int = 2
    """Number of best scores that are summed to rank a group."""
    outside_score: float = float("-inf")
    """Score of experts outside of the best groups."""


SCORES: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "softmax": partial(torch.softmax, dim=-1),
    "sigmoid": torch.sigmoid,
    "sqrt_softplus": lambda logits: torch.nn.functional.softplus(logits).sqrt(),
}
"""Scores of experts by name, from float32 router logits."""


def select_experts(
    logits: Tensor,
    bias: Tensor | None,
    score: str,
    top_k: int,
    groups: ExpertGroups,
    renormalize: bool,
    scale: float,
    chosen: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return expert weights and experts int64, [n, top_k] each, for float32 logits [n, experts].

    `score` is a key of `SCORES`. `bias` [experts] is added for the choice only. `renormalize`:
    weights sum to `scale`. `chosen`: the experts [n, top_k], if scores do not choose them.
    """
    scores = SCORES[score](logits)
    return select_by_scores(scores, bias, top_k, groups, renormalize, scale, chosen)


def select_by_scores(
    scores: Tensor,
    bias: Tensor | None,
    top_k: int,
    groups: ExpertGroups,
    renormalize: bool,
    scale: float,
    chosen: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the same as `select_experts`, for float32 scores [n, experts]."""
    choice_scores = scores if bias is None else scores + bias
    if groups.num_groups > 1:
        choice_scores = _best_groups(groups, choice_scores)
    shares, experts = choice_scores.topk(top_k, dim=-1)
    experts = experts if chosen is None else chosen
    if choice_scores is not scores or chosen is not None:
        shares = scores.gather(-1, experts)
    if renormalize:
        shares = shares / shares.sum(-1, keepdim=True)
    return (shares if scale == 1.0 else shares * scale), experts


def _best_groups(groups: ExpertGroups, choice_scores: Tensor) -> Tensor:
    """Return the scores, with `outside_score` for experts outside of the best groups."""
    num_tokens, num_experts = choice_scores.shape
    grouped = choice_scores.view(num_tokens, groups.num_groups, num_experts // groups.num_groups)
    worth = grouped.topk(groups.num_ranked, dim=-1).values.sum(-1)  # [n, groups]
    best = worth.topk(groups.top_k, dim=-1).indices
    is_out = torch.ones_like(worth, dtype=torch.bool).scatter_(1, best, False)
    return grouped.masked_fill(is_out[..., None], groups.outside_score).view_as(choice_scores)
