"""Linear layers whose weights are packed row by row as they load; no plain copy is kept, and rows
can be written again.
"""

from __future__ import annotations

from typing import Any

import torch
from core_kernels.library import Library, load_library
from core_kernels.packed import PackedOps
from torch import nn

from builtin_plugins.quant_methods.packed import floats, ints
from builtin_plugins.quant_methods.packed.experts import PackedExperts
from builtin_plugins.quant_methods.stored.layouts import Grouping
from core.api import ExpertsMethod, LinearMethod, Part, QuantMethod
from core.models.layers.linear import PlainWeights
from core.models.layers.weights import refuse_integers


def make_method(config: Any = None) -> QuantMethod:
    """Return the method, or that of weights as they are where the library is neither there nor to
    be built.
    """
    library = load_library()
    return PlainWeights(config) if library is None else PackedWeights(PackedOps(library), library)


class PackedWeights:
    """Every linear layer, every head with its embedding, and all experts."""

    name = "packed"

    def __init__(self, ops: PackedOps, library: Library) -> None:
        self._ops = ops
        self._library = library

    def linear(self, prefix: str) -> LinearMethod:
        """Return a fresh method."""
        del prefix
        return KeepingLinear(self._ops, self._library)

    def head(self, prefix: str) -> LinearMethod:
        """Return a fresh method, which embeds as well."""
        return self.linear(prefix)

    def experts(self, prefix: str) -> ExpertsMethod:
        """Return a fresh method."""
        del prefix
        return KeepingExperts(self._ops, self._library)


class PackedLinear:
    """One weight matrix [out, in]."""

    suffixes: tuple[str, ...] = ("weight",)

    def __init__(self, ops: PackedOps) -> None:
        self._ops = ops
        self._rows = self._width = 0

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of the weight."""
        return part.shape if suffix == "weight" else None

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register `weight`, packed."""
        self._rows = out_features
        self._width = in_features
        empty = self._ops.empty(out_features, in_features, dtype)
        layer.register_parameter("weight", nn.Parameter(empty, requires_grad=False))

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Pack the rank's part into its rows."""
        refuse_integers(tensor)
        for rows, own in part.plain(tensor):
            self._ops.pack(layer.get_parameter(suffix).data, self._rows, rows.start, own)

    def finish(self, layer: nn.Module) -> None:
        """Nothing to repack."""

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T."""
        return self._ops.linear(x, layer.weight, self._rows)  # type: ignore[arg-type]

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of these numbers."""
        return self._ops.rows(layer.weight, self._rows, self._width, ids)  # type: ignore[arg-type]


class KeepingLinear(PackedLinear):
    """The same, which also knows who keeps numbers as they are stored."""

    def __init__(self, ops: PackedOps, library: Library) -> None:
        super().__init__(ops)
        self._library = library

    def keeps(self, grouping: Grouping) -> ints.PackedInts | floats.PackedFloats | None:
        """Return a keeper of such numbers; None: no kernel multiplies by them."""
        if grouping.is_float:
            of_floats = floats.ops_for(grouping, self._library)
            return None if of_floats is None else floats.PackedFloats(of_floats)
        of_ints = ints.ops_for(grouping, self._library)
        return None if of_ints is None else ints.PackedInts(of_ints)


class KeepingExperts(PackedExperts):
    """The same for experts."""

    def __init__(self, ops: PackedOps, library: Library) -> None:
        super().__init__(ops)
        self._library = library

    def keeps(self, grouping: Grouping) -> ints.PackedIntExperts | floats.PackedFloatExperts | None:
        """Return a keeper of such numbers."""
        if grouping.is_float:
            of_floats = floats.ops_for(grouping, self._library)
            return None if of_floats is None else floats.PackedFloatExperts(of_floats)
        of_ints = None if grouping.is_ordered else ints.ops_for(grouping, self._library)
        return None if of_ints is None else ints.PackedIntExperts(of_ints)
