"""Low-rank factors of linear layers, as a device's kernel reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from core_kernels import low_rank
from core_kernels.library import load_library
from core_kernels.low_rank import LowRankParts, Plain
from core_kernels.row_ops import DTYPES
from torch import nn

from builtin_plugins.features.lora.deltas import Delta, LinearDelta


class Packed(Protocol):
    """What one adapter adds to one layer."""

    @property
    def num_bytes(self) -> int:
        """Of all that is kept."""


class Table(Protocol):
    """What all adapters add to one layer, by number."""

    def put(self, number: int, layer: Any) -> None:
        """Set what one adapter adds; None takes it out."""


class StepRows(Protocol):
    """Whose the rows of a step are, where the kernel finds it."""

    moves: int
    """How often they have got another place."""

    def take(self, adapters: npt.NDArray[np.int32]) -> None:
        """Note each row's adapter; -1: it has none."""

    def among(self, tokens: torch.Tensor | slice | None) -> Any:
        """Return the rows, or a choice of them, for `add`."""


class Kernel(Protocol):
    """Adds what adapters make of rows; all adapters are of one dtype."""

    def pack(self, layers: Sequence[LowRankParts]) -> Sequence[Packed]:
        """Return what an adapter adds to each layer, in the order given."""

    def table(self, size: int, most_parts: int) -> Table:
        """Return a table for so many adapters, none of which has more parts."""

    def rows(self, num_adapters: int) -> StepRows:
        """Return what notes whose rows are."""

    def add(self, out: torch.Tensor, x: torch.Tensor, rows: Any, table: Any) -> None:
        """Add to out [rows, columns] what the adapter of each row makes of x [rows, in]; numbers of
        a row are neighbours.
        """


def kernel_for(
    dtype: torch.dtype, device: str, most_rank: int, *, has_triton: bool
) -> Kernel | None:
    """Return the kernel for adapters of a dtype and of ranks up to `most_rank`; None: plain torch
    is to do it.
    """
    if dtype not in DTYPES:
        return None
    if has_triton:
        from core_kernels.triton.low_rank import LowRankOps  # lazy: triton is not everywhere

        return LowRankOps(device, dtype, most_rank)
    library = load_library() if device == "cpu" else None
    return None if library is None else low_rank.LowRankOps(library)


def pack(
    kernel: Kernel, deltas: Mapping[nn.Module, Delta], dtype: torch.dtype
) -> dict[nn.Module, Packed]:
    """Return those that the kernel takes, packed: all but where ranks share out both factors, and
    have to meet between.
    """
    taken = {
        module: LowRankParts(
            [Plain(part.rows.start, part.a, part.b) for part in delta.parts],
            None if delta.bias is None else delta.bias.to(dtype),
        )
        for module, delta in deltas.items()
        if isinstance(delta, LinearDelta) and all(part.group is None for part in delta.parts)
    }
    return dict(zip(taken, kernel.pack(list(taken.values())), strict=True))
