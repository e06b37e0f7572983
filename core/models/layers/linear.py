"""Linear layers: split over ranks, fused over named slices, their weights kept by the quantization
method.

Knows where rows and columns go; how weights are stored and multiplied is the `LinearMethod`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from core.contracts.part import Part, in_order, merged
from core.errors import ModelError
from core.models.layers.kept import KeptLayer, plain_method, put_onto
from core.models.layers.weights import WeightMap, empty_parameter, fill, place

if TYPE_CHECKING:
    from core.contracts import BuildContext, LinearMethod


@dataclass(frozen=True, slots=True)
class Slice:
    """Output rows of a fused layer that belong together: the query, the gate."""

    name: str
    size: int
    """Rows in the whole model."""
    prefix: str = ""
    """Checkpoint prefix of its own tensors, or of those it shares with its neighbours; empty: the
    layer's.
    """
    parts: int | None = None
    """Ranks that share the rows when fewer than the group (key-value heads); the others hold
    copies.
    """
    bias: bool = True
    """False: it has no bias though the layer has one; rows with their own `prefix` only."""


Tokens = torch.Tensor | slice
"""Places of tokens in the step."""


class Adapter(Protocol):
    """Adds to a linear layer's product (low-rank adapters)."""

    def __call__(
        self, layer: nn.Module, x: torch.Tensor, out: torch.Tensor, tokens: Tokens | None = None
    ) -> torch.Tensor:
        """Return the changed product, without bias and before the ranks' are summed. Changing `out`
        in place is allowed.

        `layer.prefixes` has the rows of `out` by the checkpoint prefix of their weights, and
        `layer.parts` which part of those weights this rank has: of split columns, x has the columns
        of it alone. `tokens`: which tokens of the step x has, in its order; left out where it has
        them all.
        """


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

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of the weight."""
        return part.shape if suffix == "weight" else None

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register `weight`."""
        layer.register_parameter("weight", empty_parameter(out_features, in_features, dtype=dtype))

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: Part | slice) -> None:
        """Copy the rank's part to its rows, or take the tensor itself when that is the whole
        weight.

        With rows instead of a part the tensor is cut already, as methods of older plugins get it.
        """
        weight = layer.get_parameter(suffix)
        for rows, own in [(part, tensor)] if isinstance(part, slice) else part.plain(tensor):
            if own.shape == weight.shape:
                place(weight, own)
            else:
                fill(weight.data[rows], own)

    def finish(self, layer: nn.Module) -> None:
        """Nothing to repack."""

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T by the chosen `linear` op."""
        product: torch.Tensor = layer.ops.linear(x, layer.weight)  # type: ignore[union-attr,operator]
        return product

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of these numbers by the chosen `embedding` op."""
        rows: torch.Tensor = layer.ops.embedding(ids, layer.weight)  # type: ignore[union-attr,operator]
        return rows


def linear_method(context: BuildContext, prefix: str) -> LinearMethod:
    """Return the quantization method's for this layer; the device's, where that leaves the weight
    as it is.
    """
    method = context.quant.linear(prefix)
    if type(method) is PlainLinear:
        return plain_method(context, "linear", prefix) or method
    return put_onto(method, lambda: plain_method(context, "linear", prefix) or PlainLinear())  # type: ignore[no-any-return]


class Linear(KeptLayer):
    """y = x @ W.T + b for this rank's rows or columns.

    `split="rows"`: each rank computes its part of the output. `split="columns"`: each rank takes
    its part of the input and the outputs are summed. `split=""`: every rank computes all. `order`:
    the checkpoint keeps the rows in as many blocks of equal size, the first of ours being its
    `order[0]`-th.
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
            name: self._part(parts, in_features, order, transposed) for name, parts in stored
        }
        self.prefixes = {name: part.target for name, part in self.parts.items()}
        """By checkpoint prefix: the output rows of its weights."""
        self.method = linear_method(context, stored[0][0])
        self.method.create(self, self.in_features, self.out_features, context.dtype)
        self.bias: nn.Parameter | None
        self.register_parameter(
            "bias", empty_parameter(self.out_features, dtype=context.dtype) if bias else None
        )
        for name, listed in stored:
            self.expect(weights, name, self.parts[name])
            self._expect_bias(weights, name, listed)

    def forward(self, x: torch.Tensor, tokens: Tokens | None = None) -> torch.Tensor:
        """Return this rank's output rows, or the summed output of split columns.

        `tokens` says which tokens of the step x has, where these are not all in their order.
        """
        out = self.method.apply(self, x)
        if (
            self.adapter is not None
        ):  # before the sum: of split columns, a rank adds what its part of x gives
            out = (
                self.adapter(self, x, out) if tokens is None else self.adapter(self, x, out, tokens)
            )
        if self._split == "columns":
            out = self._group.all_reduce(out)
        return out if self.bias is None else out.add_(self.bias)  # type: ignore[no-any-return]

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
                        f"{part.name} of size {size} does not divide over {parts} ranks."
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
    ) -> Part:
        """Return what this rank takes of a tensor that holds the rows of `slices`, one after the
        other.
        """
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
        return Part(
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
                f"{prefix}.bias", (part.out_features,), lambda tensor: fill(rows, part.rows(tensor))
            )
        else:
            rows.zero_()
