"""Logits processors written for one request at a time: a function of tokens and a row of logits,
run over the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from core.contracts.sampling import SamplerContext, SampleRows
    from core.types import SamplingParams

RowFunction = Callable[[list[int], list[int], "torch.Tensor"], "torch.Tensor"]
"""Takes the prompt's token ids, the output's so far and the row's logits [vocab]; returns the
logits to use.
"""


class RequestLogitsProcessor:
    """Base class of such processors: give `new_request`, and say in `params` and `extra_args` what
    asks for it.

    Simple, and slow: each row's tokens are read back to the host in every step, and each row is a
    call.
    """

    params: tuple[str, ...] = ()
    argmax_invariant = False
    follows_tokens = False
    """Set it to True where the functions remember what they were called with."""

    def __init__(self, context: SamplerContext) -> None:
        self.context = context
        self._rows: dict[int, RowFunction] = {}

    def new_request(self, sampling: SamplingParams) -> RowFunction | None:
        """Return the function for a request, or None for one that does not ask for it."""
        raise NotImplementedError

    def wants(self, sampling: SamplingParams) -> bool:
        """Say whether the request gets a function."""
        return self.new_request(sampling) is not None

    def added(
        self, row: int, sampling: SamplingParams, token_ids: Sequence[int], prompt_len: int
    ) -> None:
        """Make the row's function."""
        function = self.new_request(sampling)
        assert function is not None
        self._rows[row] = function

    def removed(self, row: int) -> None:
        """Forget it."""
        del self._rows[row]

    def apply(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        """Call each row's function."""
        facts = zip(rows.rows, rows.prompt_lens, rows.lengths, strict=True)
        for i, (row, prompt_len, length) in enumerate(facts):
            tokens: list[int] = rows.token_ids[row, :length].tolist()
            logits[i] = self._rows[row](tokens[:prompt_len], tokens[prompt_len:], logits[i])
        return logits
