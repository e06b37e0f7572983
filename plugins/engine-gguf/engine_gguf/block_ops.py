"""Weights in GGUF blocks: writing rows, checking shards, and products in plain torch."""

from __future__ import annotations

from typing import Final, Protocol

import torch
from core_kernels.superblocks import KINDS, Block
from torch.nn.functional import linear

from core.api import ModelError
from core.model_spec.weight_shard import WeightShard
from engine_gguf.tensor_types import TENSOR_TYPES, dequantize_blocks


class BlockOps(Protocol):
    """Products with weights of one block type, by the C++ library or by torch."""

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


def check_shards(block: Block, whole: int, own: int, prefix: str) -> None:
    """Raise `ModelError` if a shard cuts a block, naming the tensor-parallel sizes that work."""
    if own % block.inputs == 0:
        return
    blocks = whole // block.inputs
    fitting = ", ".join(
        str(ranks) for ranks in range(1, min(blocks, 64) + 1) if blocks % ranks == 0
    )
    raise ModelError(
        f"{prefix} has {whole} columns in blocks of {block.inputs}, which {own} columns per rank "
        f"would cut. Set --tensor-parallel-size to one of {fitting or 'none'}."
    )


def write_blocks(
    ops: BlockOps,
    weight: torch.Tensor,
    rows: int,
    first: int,
    tensor: torch.Tensor,
    shard: WeightShard,
) -> None:
    """Write this rank's blocks to rows from `first` on of a weight with `rows` rows.

    Raises `ModelError` for another shape.
    """
    expected = shard.out_features, shard.in_features // ops.block.inputs, ops.block.num_bytes
    if tensor.dtype is not torch.uint8 or tuple(tensor.shape) != expected:
        found = list(tensor.shape)
        if tensor.dtype is torch.uint8 and tensor.dim() == 3:
            found = [found[0], found[1] * ops.block.inputs]
        raise ModelError(
            f"got shape {found}; the settings of the file, or the config of --hf-config-path, "
            f"expect [{shard.out_features}, {shard.in_features}]. Use another file."
        )
    ops.pack(weight, rows, first, shard.columns(shard.rows(tensor), 1, ops.block.inputs))


Tensor = torch.Tensor


class TorchOps:
    """The methods of `core_kernels.superblocks.SuperblockOps` in plain torch; slow.

    Weights are rows of blocks, dequantized for each product.
    """

    def __init__(self, kind: str) -> None:
        self.block: Final = KINDS[kind]
        self._stored: Final = TENSOR_TYPES[self.block.number]

    def empty(self, rows: int, width: int, count: int | None = None) -> Tensor:
        """Return memory for a weight [rows, width], or for `count` of them."""
        shape = (rows, width // self.block.inputs, self.block.num_bytes)
        return torch.empty(shape if count is None else (count, *shape), dtype=torch.uint8)

    def pack(self, weight: Tensor, rows: int, first: int, tensor: Tensor) -> None:
        """Copy uint8 [n, blocks, bytes of a block] to rows from `first` on."""
        del rows
        weight[first : first + len(tensor)] = tensor

    def rows(
        self, weight: Tensor, rows: int, width: int, ids: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return the rows [n, width] with ids [n]. Raises `IndexError` for an unknown id."""
        del rows, width
        return dequantize_blocks(weight[ids], self._stored).to(dtype)

    def linear(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Write x @ weight.T to `out`."""
        out.copy_(linear(x, dequantize_blocks(weight.detach(), self._stored).to(x.dtype)))

    def grouped(self, x: Tensor, weights: Tensor, counts: Tensor, out: Tensor) -> None:
        """Write each row's product with one of `weights`; counts[i] rows belong to weight i."""
        at = 0
        for weight, count in zip(weights, counts.tolist(), strict=True):
            if count:
                self.linear(x[at : at + count], weight, out[at : at + count])
            at += count
