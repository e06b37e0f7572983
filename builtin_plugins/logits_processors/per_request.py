"""Logits processors that are written for one request at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from core.api.sampling import SamplerContext, SampleRows

if TYPE_CHECKING:
    import torch

    from core.api import SamplingParams

RowFunction = Callable[[list[int], list[int], "torch.Tensor"], "torch.Tensor"]
"""Receives prompt ids, output ids and the row's logits [vocab]; returns the
logits to use.
"""


class RequestLogitsProcessor:
    """Base class of a logits processor that is written for one request at a
    time.

    Implement `new_request`, and declare in `params` and `extra_args` which fields
    select it. Simple but slow: tokens of each row are read back to the host in every
    step.
    """

    params: tuple[str, ...] = ()
    argmax_invariant = False
    follows_tokens = False
    """Set to True if the functions have state."""

    def __init__(self, context: SamplerContext) -> None:
        self.context = context
        self._rows: dict[int, RowFunction] = {}

    def new_request(self, sampling: SamplingParams) -> RowFunction | None:
        """Return the function of a request, or None if it needs none."""
        raise NotImplementedError

    def wants(self, sampling: SamplingParams) -> bool:
        """Return whether the request has a function."""
        return self.new_request(sampling) is not None

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Create the row's function."""
        if (function := self.new_request(sampling)) is not None:
            self._rows[row] = function

    def removed(self, row: int) -> None:
        """Drop the row's function."""
        del self._rows[row]

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Call each row's function."""
        facts = zip(rows.rows, rows.prompt_lens, rows.lengths, strict=True)
        for i, (row, prompt_len, length) in enumerate(facts):
            tokens: list[int] = rows.token_ids[row, :length].tolist()
            logits[i] = self._rows[row](tokens[:prompt_len], tokens[prompt_len:], logits[i])
        return logits
