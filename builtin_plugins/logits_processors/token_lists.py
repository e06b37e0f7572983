"""Token ids per row, as indices into a step's logits; rebuilt only when the rows change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from core.api.sampling import SampleRows


class TokenLists:
    """A list of token ids per row, with optional values."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._lists: dict[int, tuple[list[int], list[float]]] = {}
        self._cached_key: tuple[list[int], list[int]] | None = None
        self._cached: tuple[torch.Tensor, torch.Tensor]

    def put(self, row: int, ids: Sequence[int], values: Sequence[float] = ()) -> None:
        """Store the ids of a row, except those outside the vocabulary."""
        known = [i for i, token in enumerate(ids) if 0 <= token < self._vocab_size]
        own_values = [values[i] for i in known] if values else []
        self._lists[row] = ([ids[i] for i in known], own_values)
        self._cached_key = None

    def drop(self, row: int) -> None:
        """Remove a row."""
        self._lists.pop(row, None)
        self._cached_key = None

    def logit_indices(
        self, logits: torch.Tensor, rows: SampleRows, indices: list[int] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (indices into the flattened logits, values) of all entries or of `indices`."""
        chosen = list(range(len(rows.rows))) if indices is None else indices
        key = (chosen, [rows.rows[i] for i in chosen])
        if self._cached_key != key:
            flat = []
            values = []
            for i, row in zip(*key, strict=True):
                ids, own = self._lists[row]
                flat += [i * self._vocab_size + token for token in ids]
                values += own
            self._cached = rows.row_index.new_tensor(flat), logits.new_tensor(values)
            self._cached_key = key
        return self._cached
