"""Packs low-rank factors of linear layers for a device's kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from core_kernels import low_rank
from core_kernels.library import load_library
from core_kernels.low_rank import LowRankFactors, LowRankParts
from core_kernels.row_ops import DTYPES
from torch import nn

from builtin_plugins.features.lora.deltas import Delta, LinearDelta


class PackedLayer(Protocol):
    """One adapter's delta of one layer, packed."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""


class Table(Protocol):
    """The packed deltas of all adapters for one layer, by slot."""

    def put(self, number: int, layer: Any) -> None:
        """Set the delta of one adapter; None clears it."""


class StepRows(Protocol):
    """The adapter of each row of a step, in the kernel's memory."""

    moves: int
    """How often the memory was reallocated."""

    def set_adapters(self, adapters: npt.NDArray[np.int32]) -> None:
        """Note each row's adapter; -1: it has none."""

    def select(self, tokens: torch.Tensor | slice | None) -> Any:
        """Return the rows, or a choice of them, for `add`."""


class LoraKernel(Protocol):
    """Adds adapters' deltas to rows; all adapters have one dtype."""

    def pack(self, layers: Sequence[LowRankParts]) -> Sequence[PackedLayer]:
        """Return an adapter's delta of each layer, packed, in the given order."""

    def table(self, size: int, max_parts: int) -> Table:
        """Return a table for `size` adapters with up to `max_parts` parts."""

    def rows(self, num_adapters: int) -> StepRows:
        """Return the memory for the rows' adapters."""

    def add(self, out: torch.Tensor, x: torch.Tensor, rows: Any, table: Any) -> None:
        """Add to out [rows, columns] the adapters' deltas for x [rows, in]; rows are contiguous."""


def kernel_for(
    dtype: torch.dtype, device: str, max_rank: int, *, has_triton: bool
) -> LoraKernel | None:
    """Return the kernel for adapters of a dtype and ranks up to `max_rank`; None: use torch."""
    if dtype not in DTYPES:
        return None
    if has_triton:
        from core_kernels.triton.low_rank import LowRankOps  # lazy: triton may not be installed

        return LowRankOps(device, dtype, max_rank)
    library = load_library() if device == "cpu" else None
    return None if library is None else low_rank.LowRankOps(library)


def pack(
    kernel: LoraKernel, deltas: Mapping[nn.Module, Delta], dtype: torch.dtype
) -> dict[nn.Module, PackedLayer]:
    """Return the packed deltas of the kernel: all except those with two sharded factors."""
    taken = {
        module: LowRankParts(
            [LowRankFactors(part.rows.start, part.a, part.b) for part in delta.parts],
            None if delta.bias is None else delta.bias.to(dtype),
        )
        for module, delta in deltas.items()
        if isinstance(delta, LinearDelta) and all(part.group is None for part in delta.parts)
    }
    return dict(zip(taken, kernel.pack(list(taken.values())), strict=True))
