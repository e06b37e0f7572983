"""A pooler: the mean of the first and the last token's hidden state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.api import PoolingParams

if TYPE_CHECKING:
    import torch


EXAMPLES = [([[1.0, 0.0], [5.0, 5.0], [0.0, 1.0]], [7, 8, 9], [[0.5, 0.5]])]
"""Hidden states, token ids, and the resulting vectors."""


class Acme:
    """Pools complete prompts; stateless."""

    needs_whole_prompt = True
    """Whether all hidden states are needed, without prefix cache hits."""
    per_token = False

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [1, size] for hidden states [tokens, size]."""
        return (hidden[:1] + hidden[-1:]) / 2
