"""Poolers: what of a prompt's hidden states stands for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from core.types.pooling import PoolingParams


class Pooler(Protocol):
    """Chooses or combines the hidden states of one prompt. Constructed with the engine's config, if
    it takes an
    argument; keeps no state.

    Must not read device values back to the host: what depends on tokens is decided from
    `token_ids`, which are on it. What it raises fails the request it was called for.
    """

    whole: bool
    """It needs the hidden states of every token; False: the last one's are enough, and earlier ones
    may come from the
    prefix cache."""
    per_token: bool
    """It gives several vectors, not one for the prompt."""

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [m, size] for the hidden states [n, size] of a prompt; m is 1 unless `per_token`.

        n is the number of `token_ids` if `whole`; otherwise only the last of them may be there. The
        first `params.unpooled` are no part of the text: whoever takes several tokens together
        leaves them out.
        """
