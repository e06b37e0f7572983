"""Finds the entries of a step that end with given token sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from core.api.sampling import SampleRows


class Endings:
    """Pairs of an entry and a sequence: its first tokens and its last one, on the device."""

    def __init__(self, rows: SampleRows, pairs: Sequence[tuple[int, Sequence[int]]]) -> None:
        """`pairs`: index of the entry, and the sequence."""
        self.span = max((len(sequence) - 1 for _, sequence in pairs), default=0)
        new = rows.row_index.new_tensor
        self.index = new([index for index, _ in pairs])
        prefixes = [
            [-1] * (self.span + 1 - len(sequence)) + list(sequence[:-1]) for _, sequence in pairs
        ]
        self._prefixes = new(prefixes).view(len(pairs), self.span)
        self.last = new([sequence[-1] for _, sequence in pairs])

    def mask(self, logits: torch.Tensor, rows: SampleRows, *, after_prompt: bool) -> torch.Tensor:
        """Mask the last token of each sequence where the entry ends with the tokens before it.

        `after_prompt`: only generated tokens begin a sequence.
        """
        length = rows.length_index[self.index]
        first = rows.prompt_index[self.index] if after_prompt else length * 0
        back = self._prefixes.new_ones(self.span).cumsum(0).flip(0)  # span, ..., 2, 1 tokens ago
        positions = length[:, None] - back  # [sequences, span]
        tokens = rows.token_ids[rows.row_index[self.index][:, None], positions.clamp(min=0)]
        same = (tokens == self._prefixes) & (positions >= first[:, None])
        matches = (same | (self._prefixes < 0)).all(dim=1)
        mask = logits.new_zeros(len(self.last)).masked_fill_(matches, float("-inf"))
        flat = self.index * logits.shape[1] + self.last
        return logits.reshape(-1).index_add_(0, flat, mask).view(logits.shape)
