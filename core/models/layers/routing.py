"""Which experts a token takes, and in what shares. Knows scores, no weights of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from core.model_spec.decoder import MoeSpec


def choose(
    spec: MoeSpec, logits: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return shares and experts [n, top_k] of tokens with router logits [n, experts] in float32."""
    if spec.score == "sparsemixer":
        return _sparsemixer(logits, spec.top_k, spec.jitter)
    scores = logits.softmax(-1) if spec.score == "softmax" else logits.sigmoid()
    wanted = scores if bias is None else scores + bias
    if spec.groups > 1:
        wanted = _best_groups(spec, wanted)
    shares, experts = wanted.topk(spec.top_k, dim=-1)
    if wanted is not scores:
        shares = scores.gather(-1, experts)
    if spec.renormalize:
        shares = shares / shares.sum(-1, keepdim=True)
    return (shares if spec.scale == 1.0 else shares * spec.scale), experts


def _best_groups(spec: MoeSpec, wanted: torch.Tensor) -> torch.Tensor:
    """Return the scores, minus infinity where the expert's group is none of the best."""
    grouped = wanted.view(-1, spec.groups, spec.experts // spec.groups)
    worth = grouped.topk(spec.group_best, dim=-1).values.sum(-1)  # [n, groups]
    best = worth.topk(spec.top_groups, dim=-1).indices
    is_out = torch.ones_like(worth, dtype=torch.bool).scatter_(1, best, False)
    return grouped.masked_fill(is_out[..., None], float("-inf")).view_as(wanted)


def _sparsemixer(
    logits: torch.Tensor, top_k: int, jitter: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best expert, then the best of the others, ...; each shares with those nearly as
    good only.
    """
    left = logits
    shares = []
    experts = []
    for _ in range(top_k):
        best, expert = left.max(dim=-1, keepdim=True)
        is_far = (best - logits) / logits.abs().clamp(min=best) > 2 * jitter
        shares.append(left.masked_fill(is_far, float("-inf")).softmax(-1).gather(-1, expert))
        experts.append(expert)
        left = left.scatter(-1, expert, float("-inf"))
    return torch.cat(shares, -1), torch.cat(experts, -1)
