"""A logits processor: bans the tokens that a request lists in `extra_args={"acme": [ids]}`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from core.api import SamplingParams
    from core.api.sampling import SamplerContext, SampleRows

EXAMPLES = [
    ({"extra_args": {"acme": [1]}}, [0, 2], [0.0, 1.0, 2.0], [0.0, float("-inf"), 2.0]),
    ({"extra_args": {"acme": [0]}}, [2], [0.0, 1.0, 2.0], [float("-inf"), 1.0, 2.0]),
]
"""Parameters, tokens so far, logits before and after, tested by the conformance suite."""
EXAMPLE_PARAMS = {"extra_args": {"acme": [3, 5]}}
"""Parameters of a request for the conformance suite."""


class Acme:
    """Keeps the banned tokens of each row."""

    params: tuple[str, ...] = ()
    argmax_invariant = False
    follows_tokens = False

    def __init__(self, context: SamplerContext) -> None:
        self._device = context.device
        self._vocab_size = context.vocab_size
        self._tokens: dict[int, torch.Tensor] = {}

    def wants(self, sampling: SamplingParams) -> bool:
        """Return whether the request lists banned tokens."""
        return bool((sampling.extra_args or {}).get("acme"))

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Keep the row's banned tokens on the device."""
        listed = [
            token for token in (sampling.extra_args or {})["acme"] if 0 <= token < self._vocab_size
        ]
        self._tokens[row] = torch.tensor(listed, dtype=torch.int64, device=self._device)

    def removed(self, row: int) -> None:
        """Remove the row."""
        self._tokens.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Set the logits of banned tokens to -inf."""
        for i, row in enumerate(rows.rows):
            logits[i, self._tokens[row]] = float("-inf")
        return logits
