"""What is done with weights in blocks, whoever multiplies by them: rows are put in their place,
cuts through blocks refused.
"""

from __future__ import annotations

from typing import Protocol

import torch
from core_kernels.superblocks import Block

from core.api import ModelError, Part


class Ops(Protocol):
    """Products with weights of one type of blocks: the C++ library's, or plain torch's."""

    block: Block

    def empty(self, rows: int, width: int, count: int | None = None) -> torch.Tensor: ...

    def pack(self, weight: torch.Tensor, rows: int, first: int, tensor: torch.Tensor) -> None: ...

    def rows(
        self, weight: torch.Tensor, rows: int, width: int, ids: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor: ...

    def linear(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None: ...

    def grouped(
        self, x: torch.Tensor, weights: torch.Tensor, counts: torch.Tensor, out: torch.Tensor
    ) -> None: ...


def refuse_cuts(block: Block, whole: int, own: int, prefix: str) -> None:
    """Raise `ModelError` where a rank's columns are not whole blocks, naming the numbers of ranks
    that work.
    """
    if own % block.inputs == 0:
        return
    blocks = whole // block.inputs
    fitting = ", ".join(
        str(ranks) for ranks in range(1, min(blocks, 64) + 1) if blocks % ranks == 0
    )
    raise ModelError(
        f"{prefix} has {whole} columns in blocks of {block.inputs}, which {own} columns for each "
        "rank would cut through; "
        f"--tensor-parallel-size may be one of {fitting or 'none'}."
    )


def put_blocks(
    ops: Ops, weight: torch.Tensor, rows: int, first: int, tensor: torch.Tensor, part: Part
) -> None:
    """Put a rank's part of blocks to rows from `first` on of a weight of so many.

    Raises `ModelError` for another shape.
    """
    wanted = part.out_features, part.in_features // ops.block.inputs, ops.block.num_bytes
    if tensor.dtype is not torch.uint8 or tuple(tensor.shape) != wanted:
        found = list(tensor.shape)
        if tensor.dtype is torch.uint8 and tensor.dim() == 3:
            found = [found[0], found[1] * ops.block.inputs]
        raise ModelError(
            f"has the shape {found}; [{part.out_features}, {part.in_features}] is expected by the "
            "settings of the file, or "
            "by the config given with --hf-config-path. Take another file."
        )
    ops.pack(weight, rows, first, part.columns(part.rows(tensor), 1, ops.block.inputs))
