"""Low-rank factors of linear layers, as the C++ kernel reads them: all that an adapter has, one layer after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from core_kernels.library import load_library
from core_kernels.low_rank import LowRankLayer, LowRankOps, Plain, numbers_of
from core_kernels.row_ops import DTYPES
from torch import nn

from builtin_plugins.lora.deltas import Delta, LinearDelta

LINE_BYTES: Final = 64


def kernel_for(dtype: torch.dtype, device: str) -> LowRankOps | None:
    """Return the kernel for adapters of a dtype; None: plain torch is to do it."""
    if device != "cpu" or dtype not in DTYPES:
        return None
    library = load_library()
    return None if library is None else LowRankOps(library)


def pack(ops: LowRankOps, deltas: Mapping[nn.Module, Delta], dtype: torch.dtype) -> dict[nn.Module, LowRankLayer]:
    """Return those that the kernel takes, packed: all but where ranks share out both factors, and have to meet between."""
    taken = {
        module: delta
        for module, delta in deltas.items()
        if isinstance(delta, LinearDelta) and all(part.group is None for part in delta.parts)
    }
    line = LINE_BYTES // dtype.itemsize
    plain = {module: [Plain(p.rows.start, p.a, p.b) for p in delta.parts] for module, delta in taken.items()}
    sizes = {module: -(-numbers_of(parts) // line) * line for module, parts in plain.items()}
    memory, at, packed = ops.memory(sum(sizes.values()), dtype), 0, {}
    for module, parts in plain.items():
        bias = taken[module].bias
        own = memory[at : at + sizes[module]]
        packed[module] = LowRankLayer(own, parts, None if bias is None else bias.to(dtype))
        at += sizes[module]
    return packed
