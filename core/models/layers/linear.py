"""Linear layers, split over ranks and fused over named slices.

The layer maps checkpoint rows and columns to ranks. Its `LinearMethod` stores the weights and
computes the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from core.errors import ModelError
from core.model_spec.weight_shard import WeightShard, in_order, merged
from core.models.layers.quantization import QuantizedLayer, plain_method, with_plain_method
from core.models.layers.weights import WeightMap, assign_weight, copy_weight, empty_parameter

if TYPE_CHECKING:
    import torch

    from core.contracts.models import BuildContext
    from core.model_spec.quant_method import LinearMethod, QuantizedInputs
    from core.models.layers.weights import WeightMap


@dataclass(frozen=True, slots=True)
class Slice:
    """Named output rows of a fused layer, such as the query or the gate."""

    name: str
    size: int
    """Number of rows over all ranks."""
    prefix: str = ""
    """Checkpoint prefix of its tensors, possibly shared with other slices; empty: the layer's."""
    parts: int | None = None
    """Ranks that the rows are split over; the others hold copies (KV heads). None: all ranks."""
    bias: bool = True
    """Whether its tensor has a bias, where the layer has one; only with its own `prefix`."""


Tokens = torch.Tensor | slice
"""Indices of tokens in the step."""


class Adapter(Protocol):
    """Adapter (LoRA) of a linear layer."""

    def __call__(
        self, layer: nn.Module, x: torch.Tensor, out: torch.Tensor, tokens: Tokens | None = None
    ) -> torch.Tensor:
        """Return the adapted product, without bias and before the sum over ranks.

        May modify `out` in place. `layer.prefixes` maps a checkpoint prefix to its rows of `out`,
        and `layer.parts` to this rank's part of the weights; with split columns, x holds only this
        rank's columns. `tokens`: the tokens of the step in x; None: all.
        """


class PlainWeights:
    """Quantization method of unquantized checkpoints."""

    name = "none"

    def __init__(self, config: Any = None) -> None:
        del config  # plain checkpoints have no quantization config

    def linear(self, prefix: str) -> LinearMethod:
        """Return a new method for one layer."""
        del prefix
        return PlainLinear()


class PlainLinear:
    """Unquantized linear method: one weight matrix [out, in]."""

    suffixes: tuple[str, ...] = ("weight",)

    def shape(self, suffix: str, part: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of the weight."""
        return part.shape if suffix == "weight" else None

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register `weight`."""
        layer.register_parameter("weight", empty_parameter(out_features, in_features, dtype=dtype))

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: WeightShard) -> None:
        """Copy this rank's part to its rows, or use the tensor itself if it is the whole weight."""
        weight = layer.get_parameter(suffix)
        for rows, own in part.plain(tensor):
            if own.shape == weight.shape:
                assign_weight(weight, own)
            else:
                copy_weight(weight.data[rows], own)

    def finish(self, layer: nn.Module) -> None:
        """Nothing to repack."""

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T, by the `linear` op."""
        linear: Any = layer.ops.linear  # type: ignore[union-attr]
        return linear(x, layer.weight)  # type: ignore[no-any-return]

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of `ids`, by the `embedding` op."""
        embedding: Any = layer.ops.embedding  # type: ignore[union-attr]
        return embedding(ids, layer.weight)  # type: ignore[no-any-return]


def linear_method(context: BuildContext, prefix: str) -> LinearMethod:
    """Return the method of a layer: the quantization method's, or the device's for plain
    weights.
    """
    method = context.quant.linear(prefix)
    if type(method) is PlainLinear:
        return plain_method(context, "linear", prefix) or method
    result: LinearMethod = with_plain_method(
        method, lambda: plain_method(context, "linear", prefix) or PlainLinear()
    )
    return result


class Linear(QuantizedLayer):
    """y = x @ W.T + b for this rank's rows or columns.

    `split="rows"`: each rank computes its part of the output. `split="columns"`: each rank
    multiplies its part of the input and the outputs are summed. `split=""`: every rank computes
    everything. `order`: order of equal row blocks in the checkpoint; our first block is block
    `order[0]` there. `orders`: orders of single prefixes, where they differ.
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
        orders: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        super().__init__()
        self.ops = context.ops
        self.adapter = None
        self._group = context.group
        self._split = split
        self.in_features = (
            self._group.share(in_features, f"input of {prefix}")
            if split == "columns"
            else in_features
        )
        self.slices = self._local(slices)
        self.out_features = sum(rows.stop - rows.start for rows in self.slices.values())
        stored = [
            (name, list(parts))
            for name, parts in groupby(slices, lambda part: part.prefix or prefix)
        ]
        self.parts = {
            name: self._part(parts, in_features, (orders or {}).get(name, order), transposed)
            for name, parts in stored
        }
        self.prefixes = {name: part.target for name, part in self.parts.items()}
        """Output rows of each checkpoint prefix."""
        self.method = linear_method(context, stored[0][0])
        self.method.create(self, self.in_features, self.out_features, context.dtype)
        self.bias: nn.Parameter | None
        self.register_parameter(
            "bias", empty_parameter(self.out_features, dtype=context.dtype) if bias else None
        )
        is_summed = split == "columns" and self._group.size > 1  # the bias is added to the sum
        self._apply_with_bias: Callable[[nn.Module, torch.Tensor], torch.Tensor] | None = (
            getattr(self.method, "apply_with_bias", None) if bias and not is_summed else None
        )
        for name, listed in stored:
            self.expect(weights, name, self.parts[name])
            self._expect_bias(weights, name, listed)

    def forward(self, x: torch.Tensor, tokens: Tokens | None = None) -> torch.Tensor:
        """Return this rank's output rows, or the summed output of split columns.

        x may be rows of `input_kernels`. `tokens`: the tokens of the step in x; None: all in order.
        """
        if self._apply_with_bias is not None and self.adapter is None:
            return self._apply_with_bias(self, x)
        out = self.method.apply(self, x)
        if (
            self.adapter is not None
        ):  # before the sum: with split columns, a rank adds the product of its part of x
            out = (
                self.adapter(self, x, out) if tokens is None else self.adapter(self, x, out, tokens)
            )
        if self._split == "columns":
            out = self._group.all_reduce(out)
        return out if self.bias is None else out.add_(self.bias)  # type: ignore[no-any-return]

    def input_kernels(self) -> QuantizedInputs | None:
        """Return kernels that quantize x where it is computed; None: x is plain, as adapters are
        applied to it.
        """
        return self._quantized_inputs if self.adapter is None else None

    @cached_property
    def _quantized_inputs(self) -> QuantizedInputs | None:
        find: Callable[[nn.Module], QuantizedInputs | None] | None
        find = getattr(self.method, "quantized_inputs", None)
        return None if find is None else find(self)

    def _local(self, slices: Sequence[Slice]) -> dict[str, slice]:
        """Return the rows of each slice on this rank."""
        out: dict[str, slice] = {}
        start = 0
        for part in slices:
            size = part.size
            if self._split == "rows":
                parts = part.parts or self._group.size
                if size % parts:
                    raise ModelError(
                        f"{part.name}: got size {size}; expected a multiple of {parts} ranks."
                    )
                size //= parts
            out[part.name] = slice(start, start + size)
            start += size
        return out

    def _part(
        self,
        slices: Sequence[Slice],
        in_features: int,
        order: Sequence[int] | None,
        transposed: bool,
    ) -> WeightShard:
        """Return this rank's part of a tensor with the consecutive rows of `slices`."""
        total = sum(part.size for part in slices)

        def pieces() -> Iterator[tuple[slice, slice]]:
            start = 0
            for part in slices:
                own = slice(0, part.size)
                to = self.slices[part.name].start
                if self._split == "rows":
                    own = self._group.own(part.size, part.parts)
                yield from in_order(
                    start + own.start, own.stop - own.start, to, order or (0,), total
                )
                start += part.size

        columns = (
            self._group.own(in_features) if self._split == "columns" else slice(0, in_features)
        )
        return WeightShard(
            pieces=merged(pieces()),
            columns_in=columns,
            out_features=total,
            in_features=in_features,
            transposed=transposed,
        )

    def _expect_bias(self, weights: WeightMap, prefix: str, slices: Sequence[Slice]) -> None:
        if self.bias is None:
            return
        part = self.parts[prefix]
        rows = self.bias.data[self.prefixes[prefix]]
        if slices[0].bias:
            weights.add(
                f"{prefix}.bias",
                (part.out_features,),
                lambda tensor: copy_weight(rows, part.rows(tensor)),
            )
        else:
            rows.zero_()


class UnpackedWeight(QuantizedLayer):
    """Passes this rank's rows [n, in] of a dequantized weight to `take` after each load.

    Uses the quantization method if it can dequantize (`use_plain_method`); otherwise the weight is
    read as stored. Holds no weight between loads.
    """

    def __init__(
        self,
        context: BuildContext,
        weights: WeightMap,
        prefix: str,
        shape: tuple[int, int],
        own: slice,
        take: Callable[[torch.Tensor], None],
    ) -> None:
        super().__init__()
        self.ops = context.ops
        pieces = ((own, slice(0, own.stop - own.start)),)
        part = WeightShard(
            pieces=pieces,
            columns_in=slice(0, shape[1]),
            out_features=shape[0],
            in_features=shape[1],
        )
        self.parts = {prefix: part}
        self._sizes = (shape[1], own.stop - own.start)
        self._dtype = context.dtype
        self._give = take
        method = context.quant.linear(prefix)
        can_dequantize = hasattr(method, "use_plain_method")
        self.method = with_plain_method(method, PlainLinear) if can_dequantize else PlainLinear()
        self.expect(weights, prefix, part)

    def finish(self) -> None:
        """Let the method repack, then pass the weight on and drop it."""
        if self._is_fresh:
            super().finish()
            self._give(self.weight.data)  # type: ignore[arg-type]
            del self.weight

    def _take(self, suffix: str, part: WeightShard, tensor: torch.Tensor) -> None:
        if not hasattr(self, "weight"):
            # A memory plan loads meta tensors.
            with torch.device("meta") if tensor.is_meta else nullcontext():
                self.method.create(self, *self._sizes, self._dtype)
        super()._take(suffix, part, tensor)


class AdapterSlot(nn.Module):
    """Adapter slot of a weight [out, in] that another module owns, such as a router.

    Every rank has the whole weight.
    """

    adapter: Adapter | None

    def __init__(self, prefix: str, out_features: int, in_features: int) -> None:
        super().__init__()
        self.adapter = None
        rows = slice(0, out_features)
        columns = slice(0, in_features)
        part = WeightShard(
            pieces=((rows, rows),),
            columns_in=columns,
            out_features=out_features,
            in_features=in_features,
        )
        self.parts = {prefix: part}
        self.prefixes = {prefix: rows}

    def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Return `out`, the product of x, adapted if an adapter is set."""
        return out if self.adapter is None else self.adapter(self, x, out)
