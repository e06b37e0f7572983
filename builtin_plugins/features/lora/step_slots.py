"""Adapter slots of the current step's tokens; adapters read them when layers call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from builtin_plugins.features.lora.deltas import Delta
from builtin_plugins.features.lora.kernels import LoraKernel, PackedLayer, Table

Tensor = torch.Tensor


class StepSlots:
    """The adapter slot of each of a step's tokens."""

    def __init__(
        self, kernel: LoraKernel | None, dtype: torch.dtype, device: str, num_slots: int
    ) -> None:
        """`dtype`: of adapters. `kernel`: multiplies packed adapters, if there is one."""
        self._kernel = kernel
        self._dtype = dtype
        self._device = device
        self._num_slots = num_slots
        self._rows = None if kernel is None else kernel.rows(num_slots)
        self._of_token = np.empty(0, dtype=np.int32)
        self._tokens_of_slots: list[tuple[int, Tensor | None]] | None = None
        """Tokens of each slot, computed on first use; None in place of indices: all tokens."""

    def set(self, slot_of_row: Sequence[int], counts: Sequence[int]) -> None:
        """Set the slots of a step's tokens."""
        of_token = np.repeat(
            np.asarray(slot_of_row, dtype=np.int32), np.asarray(counts, dtype=np.int64)
        )
        self._of_token = of_token
        self._tokens_of_slots = None
        if self._rows is not None:
            self._rows.set_adapters(of_token)

    @property
    def moves(self) -> int:
        """Number of reallocations of the kernel's step arrays, which recorded steps address."""
        return 0 if self._rows is None else self._rows.moves

    def table(self, num_parts: int) -> Table:
        """Return a table of packed adapters for a module with `num_parts` parts."""
        assert self._kernel is not None, "packing needs a kernel"
        return self._kernel.table(self._num_slots, num_parts)

    def tokens_of_slots(self, tokens: Tensor | slice | None) -> list[tuple[int, Tensor | None]]:
        """Return, for each slot, the indices of its tokens among `tokens`; None: all of them."""
        if tokens is None:
            if self._tokens_of_slots is None:
                self._tokens_of_slots = self._group_by_slot(self._of_token)
            return self._tokens_of_slots
        return self._group_by_slot(
            self._of_token[tokens if isinstance(tokens, slice) else tokens.cpu().numpy()]
        )

    def _group_by_slot(self, numbers: npt.NDArray[np.int32]) -> list[tuple[int, Tensor | None]]:
        slots = [int(slot) for slot in np.unique(numbers) if slot >= 0]
        if slots and (numbers == slots[0]).all():
            return [(slots[0], None)]
        return [
            (s, torch.from_numpy(np.flatnonzero(numbers == s)).to(self._device, non_blocking=True))
            for s in slots
        ]

    def add_packed(
        self, table: Table, x: Tensor, out: Tensor, tokens: Tensor | slice | None
    ) -> None:
        """Add to out [n, columns] the packed adapters' deltas for x [n, inputs], row by row."""
        assert self._kernel is not None, "packing needs a kernel"
        assert self._rows is not None
        rows = self._rows.select(tokens)
        if x.dtype is out.dtype is self._dtype and x.stride(1) == out.stride(1) == 1:
            self._kernel.add(out, x, rows, table)
            return
        more = torch.zeros(out.shape, dtype=self._dtype, device=out.device)
        self._kernel.add(more, x.to(self._dtype).contiguous(), rows, table)
        out += more


class ModuleAdapters:
    """The adapters of one module: each row gets the delta of its own adapter."""

    def __init__(self, active: StepSlots, num_parts: int) -> None:
        """`num_parts`: parts of the module's weight in checkpoints."""
        self._active = active
        self._num_parts = num_parts
        self._table: Table | None = None
        self._deltas: dict[int, Delta] = {}
        """By slot: deltas that torch computes."""

    def put(self, slot: int, delta: Delta) -> None:
        """Set the delta that torch adds for the adapter in a slot."""
        self._deltas[slot] = delta

    def put_packed(self, slot: int, layer: PackedLayer) -> None:
        """Set the delta that the kernel adds for the adapter in a slot."""
        if self._table is None:
            self._table = self._active.table(self._num_parts)
        self._table.put(slot, layer)

    def clear(self, slot: int) -> None:
        """Remove the adapter of a slot."""
        self._deltas.pop(slot, None)
        if self._table is not None:
            self._table.put(slot, None)

    def __call__(self, layer: Any, *given: Any) -> Tensor:
        """Return the product with deltas.

        Arguments are those of `Adapter`, `VocabAdapter`, `ExpertsAdapter` or `HeadsAdapter`.
        """
        tokens: Tensor | slice | None = None
        more: tuple[Any, ...] = ()
        if isinstance(given[0], str):  # experts and heads name the product
            which, x, out, *rest = given
            tokens, more = (rest[0], (which, rest[1])) if rest else (None, (which,))
        else:
            x, out, *rest = given
            tokens = rest[0] if rest else None
        flat, product = _by_token(x, out, more)
        if self._table is not None:
            self._active.add_packed(self._table, flat, product, tokens)
        if self._deltas:
            product = self._add_plain(layer, flat, product, tokens, more)
        return product.view(out.shape)

    def _add_plain(
        self,
        layer: Any,
        x: Tensor,
        product: Tensor,
        tokens: Tensor | slice | None,
        more: tuple[Any, ...],
    ) -> Tensor:
        for slot, own in self._active.tokens_of_slots(tokens):
            delta = self._deltas.get(slot)
            if delta is None:
                continue
            if own is None:
                product = delta.add(layer, x, product, *more)
            else:
                mine = tuple(each[own] if isinstance(each, Tensor) else each for each in more)
                product[own] = delta.add(layer, x[own], product[own], *mine)
        return product


def _by_token(x: Tensor, out: Tensor, more: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Return both with one token axis; segments of recurrent layers are flattened."""
    if more or x.dtype == torch.int64 or x.ndim == 2:
        return x, out
    return x.reshape(-1, x.shape[-1]), out.reshape(-1, out.shape[-1])
