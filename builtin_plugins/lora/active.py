"""Which rows of the step under way are whose: adapters are called by layers, and look here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from builtin_plugins.lora.deltas import Delta

Tensor = torch.Tensor


class Active:
    """The tokens of one step by slot."""

    def __init__(self) -> None:
        self.slots: tuple[int, ...] = ()
        """Those that tokens of the step are of."""
        self._of_token: Tensor = torch.empty(0, dtype=torch.int64)
        self._places: dict[int, Tensor | None] = {}
        """Of the step's tokens; None: all are of one slot."""

    def set(self, slot_of_row: Sequence[int], counts: Sequence[int], device: str) -> None:
        """Take note of a step's tokens."""
        of_token = np.repeat(np.asarray(slot_of_row, dtype=np.int64), np.asarray(counts, dtype=np.int64))
        self.slots = tuple(int(slot) for slot in np.unique(of_token) if slot >= 0)
        self._of_token = torch.from_numpy(of_token).to(device, non_blocking=True)
        if self.slots and (of_token == self.slots[0]).all():
            self._places = {self.slots[0]: None}
            return
        self._places = {
            slot: torch.from_numpy(np.flatnonzero(of_token == slot)).to(device, non_blocking=True)
            for slot in self.slots
        }

    def places(self, tokens: Tensor | slice | None) -> list[tuple[int, Tensor | None]]:
        """Return, for each slot, where among these tokens its own are; None: they all are."""
        if tokens is None:
            return list(self._places.items())
        of_token = self._of_token[tokens]
        found = [(slot, (of_token == slot).nonzero()[:, 0]) for slot in self.slots]
        return [(slot, own) for slot, own in found if len(own)]


class Handler:
    """The adapter of one module: each row gets what its own adapter adds."""

    def __init__(self, active: Active) -> None:
        self._active = active
        self.deltas: dict[int, Delta] = {}
        """By slot."""

    def __call__(self, layer: Any, *given: Any) -> Tensor:
        """Return the changed product; what is given is as `Adapter`, `VocabAdapter`, `ExpertsAdapter` or `HeadsAdapter` say."""
        tokens: Tensor | slice | None = None
        more: tuple[Any, ...] = ()
        if isinstance(given[0], str):  # of experts and of heads: which of their products it is
            which, x, out, *rest = given
            tokens, more = (rest[0], (which, rest[1])) if rest else (None, (which,))
        else:
            x, out, *rest = given
            tokens = rest[0] if rest else None
        flat, product = _by_token(x, out, more)
        for slot, own in self._active.places(tokens):
            delta = self.deltas.get(slot)
            if delta is None:
                continue
            if own is None:
                product = delta.add(layer, flat, product, *more)
            else:
                mine = tuple(each[own] if isinstance(each, Tensor) else each for each in more)
                product[own] = delta.add(layer, flat[own], product[own], *mine)
        return product.view(out.shape)


def _by_token(x: Tensor, out: Tensor, more: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Return both with one axis for tokens: recurrent layers have them by segment; heads of latents stay an axis."""
    if more or x.dtype == torch.int64 or x.ndim == 2:
        return x, out
    return x.reshape(-1, x.shape[-1]), out.reshape(-1, out.shape[-1])
