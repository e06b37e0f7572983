"""Poolers with one vector per prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.api import Entry, PoolingParams, hookimpl

if TYPE_CHECKING:
    import torch

HERE = "builtin_plugins.poolers.prompt"


@hookimpl
def engine_poolers() -> list[Entry]:
    """Return the poolers."""
    return [
        Entry("last", f"{HERE}:Last", "the last token"),
        Entry("cls", f"{HERE}:Cls", "the first token"),
        Entry("mean", f"{HERE}:Mean", "the mean of all tokens"),
        Entry("max", f"{HERE}:Max", "the largest of each number over all tokens"),
        Entry(
            "mean_sqrt_len",
            f"{HERE}:MeanSqrtLen",
            "the sum of all tokens over the root of their number",
        ),
        Entry("weighted_mean", f"{HERE}:WeightedMean", "a mean in which later tokens count more"),
    ]


class Last:
    """The last token, which attends to all others in a causal model."""

    needs_whole_prompt = False
    per_token = False

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [1, size]."""
        return hidden[-1:]


class Cls:
    """The first token (CLS), which bidirectional models train as a summary."""

    needs_whole_prompt = True
    per_token = False

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [1, size]."""
        return hidden[:1]


class Mean:
    """The mean over tokens, in float32."""

    needs_whole_prompt = True
    per_token = False

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [1, size]."""
        return hidden[params.unpooled :].float().mean(0, keepdim=True)


class Max:
    """The element-wise maximum over tokens."""

    needs_whole_prompt = True
    per_token = False

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [1, size]."""
        return hidden[params.unpooled :].amax(0, keepdim=True)


class MeanSqrtLen:
    """The sum over tokens, divided by the square root of their number."""

    needs_whole_prompt = True
    per_token = False

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [1, size]."""
        own = hidden[params.unpooled :].float()
        return own.sum(0, keepdim=True) / math.sqrt(len(own))


class WeightedMean:
    """A weighted mean, with weight n for the n-th token."""

    needs_whole_prompt = True
    per_token = False

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [1, size]."""
        weights = hidden.new_ones(len(hidden), 1).float().cumsum(0)[params.unpooled :]
        return (hidden[params.unpooled :].float() * weights).sum(0, keepdim=True) / weights.sum()
