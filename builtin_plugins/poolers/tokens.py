"""Poolers with a vector per token, or per reasoning step."""

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

    needs_whole_prompt = True
    per_token = True

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [tokens, size]."""
        return hidden


class Step:
    """The tokens equal to `step_tag_id`; every token if it is not set."""

    needs_whole_prompt = True
    per_token = True

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [steps, size]."""
        if params.step_tag_id is None:
            return hidden
        return hidden[
            [index for index, token in enumerate(token_ids) if token == params.step_tag_id]
        ]
