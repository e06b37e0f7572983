"""Poolers that give one vector for a prompt."""

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
        Entry("cls", f"{HERE}:First", "the first token"),
        Entry("mean", f"{HERE}:Mean", "the mean of all tokens"),
        Entry("max", f"{HERE}:Most", "the largest of each number over all tokens"),
        Entry(
            "mean_sqrt_len",
            f"{HERE}:MeanSqrtLen",
            "the sum of all tokens over the root of their number",
        ),
        Entry("weighted_mean", f"{HERE}:WeightedMean", "a mean in which later tokens count more"),
    ]


class Last:
    """The last token, which in a causal model has seen all others."""

    whole = False
    per_token = False

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [1, size]."""
        return hidden[-1:]


class First:
    """The first token, which models that see both sides are trained to put the whole into."""

    whole = True
    per_token = False

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [1, size]."""
        return hidden[:1]


class Mean:
    """The mean, in float32."""

    whole = True
    per_token = False

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [1, size]."""
        return hidden[params.unpooled :].float().mean(0, keepdim=True)


class Most:
    """The largest of each number."""

    whole = True
    per_token = False

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [1, size]."""
        return hidden[params.unpooled :].amax(0, keepdim=True)


class MeanSqrtLen:
    """The sum over the root of the number of tokens."""

    whole = True
    per_token = False

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [1, size]."""
        own = hidden[params.unpooled :].float()
        return own.sum(0, keepdim=True) / math.sqrt(len(own))


class WeightedMean:
    """The n-th token counts n times."""

    whole = True
    per_token = False

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [1, size]."""
        places = hidden.new_ones(len(hidden), 1).float().cumsum(0)[params.unpooled :]
        return (hidden[params.unpooled :].float() * places).sum(0, keepdim=True) / places.sum()
