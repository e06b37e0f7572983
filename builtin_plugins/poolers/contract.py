"""What a pooler is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from core.api import PoolingParams


class Pooler(Protocol):
    """Selects or combines the hidden states of one prompt. Stateless.

    Constructed with the engine's config, if it takes one. Must not read device values
    back to the host; `token_ids` are on it. An exception fails only the request.
    """

    needs_whole_prompt: bool
    """True: it needs the hidden states of every token. False: the last one
    suffices, and earlier
    ones may come from the prefix cache."""
    per_token: bool
    """True: it returns several vectors instead of one for the prompt."""

    def pool(
        self, hidden: torch.Tensor, token_ids: Sequence[int], params: PoolingParams
    ) -> torch.Tensor:
        """Return [m, size] for the hidden states [n, size] of a prompt; m is
        1 unless `per_token`.

        With `needs_whole_prompt`, n is the number of `token_ids`; otherwise it may be
        1. The first `params.unpooled` tokens are not part of the text; poolers over
        several tokens skip them.
        """
