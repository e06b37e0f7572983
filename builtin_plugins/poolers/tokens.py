"""Poolers that give a vector for each token, or for each step of a reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.api import Entry, PoolingParams, hookimpl

if TYPE_CHECKING:
    import torch

HERE = "builtin_plugins.poolers.tokens"


@hookimpl
def engine_poolers() -> list[Entry]:
    """Return the poolers."""
    return [
        Entry("all", f"{HERE}:All", "every token"),
        Entry("step", f"{HERE}:Step", "the tokens that end a step (step_tag_id)"),
    ]


class All:
    """Every token."""

    whole = True
    per_token = True

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [tokens, size]."""
        return hidden


class Step:
    """The tokens equal to `step_tag_id`; every token where it is not set."""

    whole = True
    per_token = True

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [steps, size]."""
        if params.step_tag_id is None:
            return hidden
        return hidden[
            [place for place, token in enumerate(token_ids) if token == params.step_tag_id]
        ]
