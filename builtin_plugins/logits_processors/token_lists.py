"""Token ids of rows, on the device, laid out for one indexed operation over all rows of a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class TokenLists:
    """Token ids per row, each with a number. What a step asks for is kept until other rows are asked for."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._lists: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._asked: list[int] = []
        self._answer: tuple[torch.Tensor, torch.Tensor, torch.Tensor]

    def put(self, row: int, ids: Iterable[int], values: Iterable[float] | None = None) -> None:
        """Set a row's tokens, and their values where they have some; a token may be named twice only without."""
        import torch  # lazy: plugin modules import no torch

        tokens = torch.tensor(list(ids), dtype=torch.int64, device=self._device)
        numbers = torch.zeros(len(tokens)) if values is None else torch.tensor(list(values), dtype=torch.float32)
        self._lists[row] = (tokens, numbers.to(self._device))
        self._asked = []

    def drop(self, row: int) -> None:
        """Forget a row."""
        self._lists.pop(row, None)
        self._asked = []

    def places(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return [m] int64 indices into `rows`, [m] int64 token ids and [m] float32 values."""
        import torch  # lazy: plugin modules import no torch

        if not self._asked or self._asked != rows:
            parts = [self._lists[row] for row in rows]
            lines = [tokens.new_full(tokens.shape, line) for line, (tokens, _) in enumerate(parts)]
            tokens, values = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
            self._asked, self._answer = list(rows), (torch.cat(lines), tokens, values)
        return self._answer
