"""Linear layers: split over ranks, fused over named slices, their weights kept by the quantization method.

Knows where rows and columns go; how weights are stored and multiplied is the `LinearMethod`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from core.errors import ModelError
from core.nn.weights import WeightMap, empty_parameter, fill, place

if TYPE_CHECKING:
    from core.contracts import BuildContext, LinearMethod


@dataclass(frozen=True, slots=True)
class Slice:
    """Output rows of a fused layer that belong together: the query, the gate."""

    name: str
    size: int
    """Rows in the whole model."""
    prefix: str = ""
    """Checkpoint prefix of its own tensors, or of those it shares with its neighbours; empty: the layer's."""
    parts: int | None = None
    """Ranks that share the rows when fewer than the group (key-value heads); the others hold copies."""
    bias: bool = True
    """False: it has no bias though the layer has one; rows with their own `prefix` only."""


class Adapter(Protocol):
    """Adds to a linear layer's output, slice by slice (low-rank adapters)."""

    def __call__(self, layer: Linear, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Return the changed output; `layer.slices` names its rows. Changing `out` in place is allowed."""


class PlainWeights:
    """The quantization method of checkpoints without one: weights as they are."""

    name = "none"

    def __init__(self, config: Any = None) -> None:
        del config  # plain checkpoints have no quantization config

    def linear(self, prefix: str) -> LinearMethod:
        """Return a fresh method."""
        del prefix
        return PlainLinear()


class PlainLinear:
    """One weight matrix [out, in]."""

    suffixes: tuple[str, ...] = ("weight",)

    def create(self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        """Register `weight`."""
        layer.register_parameter("weight", empty_parameter(out_features, in_features, dtype=dtype))

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, rows: slice) -> None:
        """Copy into `rows`, or take the tensor itself when it is the whole weight."""
        weight = layer.get_parameter(suffix)
        if rows.start == 0 and rows.stop == weight.shape[0]:
            place(weight, tensor)
        else:
            fill(weight.data[rows], tensor)

    def finish(self, layer: nn.Module) -> None:
        """Nothing to repack."""

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T by the chosen `linear` op."""
        product: torch.Tensor = layer.ops.linear(x, layer.weight)  # type: ignore[union-attr,operator]
        return product


class Linear(nn.Module):
    """y = x @ W.T + b for this rank's rows or columns.

    `split="rows"`: each rank computes its part of the output. `split="columns"`: each rank takes its part of the
    input and the outputs are summed. `split=""`: every rank computes all. `order`: the checkpoint keeps the rows in
    as many blocks of equal size, the first of ours being its `order[0]`-th.
    """

    adapter: Adapter | None

    def __init__(
        self,
        context: BuildContext,
        weights: WeightMap,
        prefix: str,
        in_features: int,
        slices: Sequence[Slice],
        *,
        split: str = "",
        bias: bool = False,
        transposed: bool = False,
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.ops = context.ops
        self.adapter = None
        self._group = context.group
        self._split = split
        self._transposed = transposed
        self._order = order
        self.in_features = self._group.share(in_features, f"input of {prefix}") if split == "columns" else in_features
        self.slices = self._local(slices)
        self.out_features = sum(rows.stop - rows.start for rows in self.slices.values())
        self.method = context.quant.linear(prefix)
        self.method.create(self, self.in_features, self.out_features, context.dtype)
        self.bias: nn.Parameter | None
        self.register_parameter("bias", empty_parameter(self.out_features, dtype=context.dtype) if bias else None)
        for name, parts in groupby(slices, lambda part: part.prefix or prefix):
            self._expect(weights, name, in_features, list(parts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's output rows, or the summed output of split columns."""
        out = self.method.apply(self, x)
        if self._split == "columns":
            out = self._group.all_reduce(out)
        if self.bias is not None:
            out = out.add_(self.bias)
        if self.adapter is not None:
            out = self.adapter(self, x, out)
        return out

    def finish(self) -> None:
        """Let the method repack once all tensors are in."""
        self.method.finish(self)

    def _local(self, slices: Sequence[Slice]) -> dict[str, slice]:
        """Return the rows of each slice on this rank."""
        out: dict[str, slice] = {}
        start = 0
        for part in slices:
            size = part.size
            if self._split == "rows":
                parts = part.parts or self._group.size
                if size % parts:
                    raise ModelError(f"{part.name} of size {size} does not divide over {parts} ranks.")
                size //= parts
            out[part.name] = slice(start, start + size)
            start += size
        return out

    def _expect(self, weights: WeightMap, prefix: str, in_features: int, slices: Sequence[Slice]) -> None:
        """Register the tensors of one checkpoint prefix that hold the rows of `slices`, one after the other."""
        total = sum(part.size for part in slices)
        for suffix in self.method.suffixes:
            shape: tuple[int, ...] | None = None
            if suffix == "weight":
                shape = (in_features, total) if self._transposed else (total, in_features)
            weights.add(f"{prefix}.{suffix}", shape, self._filler(suffix, slices))
        if self.bias is not None and not slices[0].bias:
            self.bias.data[self.slices[slices[0].name]] = 0
        elif self.bias is not None:
            weights.add(f"{prefix}.bias", (total,), self._filler("bias", slices))

    def _filler(self, suffix: str, slices: Sequence[Slice]) -> Callable[[torch.Tensor], None]:
        def take(tensor: torch.Tensor) -> None:
            if self._transposed and suffix == "weight":
                tensor = tensor.T
            is_whole = len(slices) == len(self.slices) and (self._group.size == 1 or self._split != "rows")
            if is_whole and self._order is None:
                self._take(suffix, tensor, slice(0, self.out_features))
                return
            start = 0
            for part in slices:
                first, length = self._own_rows(part)
                self._take(suffix, self._rows(tensor, start + first, length), self.slices[part.name])
                start += part.size

        return take

    def _own_rows(self, part: Slice) -> tuple[int, int]:
        """Return the first of a slice's rows that this rank holds, and how many they are."""
        if self._split != "rows":
            return 0, part.size
        own = self._group.own(part.size, part.parts)
        return own.start, own.stop - own.start

    def _rows(self, tensor: torch.Tensor, first: int, length: int) -> torch.Tensor:
        if self._order is None:
            return tensor.narrow(0, first, length)
        size = tensor.shape[0] // len(self._order)
        blocks = tensor.view(-1, size, *tensor.shape[1:])
        # Only the blocks that are named are copied, never the whole tensor.
        return blocks[self._order[first // size : (first + length) // size]].view(-1, *tensor.shape[1:])

    def _take(self, suffix: str, tensor: torch.Tensor, rows: slice) -> None:
        if suffix == "bias":
            assert self.bias is not None
            fill(self.bias.data[rows], tensor)
            return
        if self._split == "columns" and tensor.ndim > 1:
            tensor = self._group.cut(tensor, 1)
        self.method.load(self, suffix, tensor, rows)
