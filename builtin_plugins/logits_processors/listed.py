"""Token ids that rows have listed, as places in a step's logits.

Built again only when the rows change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from core.api import SampleRows


class ListedTokens:
    """Per row a list of token ids, with a value each where that is wanted."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._lists: dict[int, tuple[list[int], list[float]]] = {}
        self._made_for: tuple[list[int], list[int]] | None = None
        self._made: tuple[torch.Tensor, torch.Tensor]

    def put(self, row: int, ids: Sequence[int], values: Sequence[float] = ()) -> None:
        """Remember the ids of a row; those outside the vocabulary have no logit and are left out."""
        known = [i for i, token in enumerate(ids) if 0 <= token < self._vocab_size]
        self._lists[row] = ([ids[i] for i in known], [values[i] for i in known] if values else [])
        self._made_for = None

    def drop(self, row: int) -> None:
        """Forget a row."""
        self._lists.pop(row, None)
        self._made_for = None

    def places(
        self, logits: torch.Tensor, rows: SampleRows, indices: list[int] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return indices into the flattened logits, and the values, of all rows or of those at
        `indices`.
        """
        chosen = list(range(len(rows.rows))) if indices is None else indices
        wanted = (chosen, [rows.rows[i] for i in chosen])
        if self._made_for != wanted:
            flat = []
            values = []
            for i, row in zip(*wanted, strict=True):
                ids, own = self._lists[row]
                flat += [i * self._vocab_size + token for token in ids]
                values += own
            self._made = rows.row_index.new_tensor(flat), logits.new_tensor(values)
            self._made_for = wanted
        return self._made
