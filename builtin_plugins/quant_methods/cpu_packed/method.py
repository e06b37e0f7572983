"""Linear layers packed row by row on load. No plain copy is held, and rows can be written again."""

from __future__ import annotations

from typing import Any

import torch
from core_kernels.library import Library, load_library
from core_kernels.packed import PackedOps
from torch import nn

from builtin_plugins.quant_methods.cpu_packed import floats, ints
from builtin_plugins.quant_methods.cpu_packed.experts import PackedExperts
from builtin_plugins.quant_methods.cpu_packed.per_head import PackedPerHead
from builtin_plugins.quant_methods.stored.layouts import LayoutSpec
from core.model_spec.quant_method import ExpertsMethod, LinearMethod, QuantMethod
from core.model_spec.weight_shard import WeightShard
from core.models.layers.linear import PlainWeights
from core.models.layers.weights import refuse_integers


def make_method(config: Any = None) -> QuantMethod:
    """Return the method; without the C++ library, that of plain weights."""
    library = load_library()
    return PlainWeights(config) if library is None else PackedWeights(PackedOps(library), library)


class PackedWeights:
    """Linear layers, heads with their embeddings, and experts."""

    name = "packed"

    def __init__(self, ops: PackedOps, library: Library) -> None:
        self._ops = ops
        self._library = library

    def linear(self, prefix: str) -> LinearMethod:
        """Return a new linear method."""
        del prefix
        return CpuLinear(self._ops, self._library)

    def head(self, prefix: str) -> LinearMethod:
        """Return a new method, which embeds as well."""
        return self.linear(prefix)

    def experts(self, prefix: str) -> ExpertsMethod:
        """Return a new experts method."""
        del prefix
        return CpuExperts(self._ops, self._library)

    def per_head(self, prefix: str) -> PackedPerHead:
        """Return a new method for a matrix per head."""
        del prefix
        return PackedPerHead(self._ops)


class PackedLinear:
    """One weight matrix [out, in]."""

    suffixes: tuple[str, ...] = ("weight",)

    def __init__(self, ops: PackedOps) -> None:
        self._ops = ops
        self._rows = self._width = 0

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of the weight."""
        return shard.shape if suffix == "weight" else None

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register `weight`, packed."""
        self._rows = out_features
        self._width = in_features
        empty = self._ops.empty(out_features, in_features, dtype)
        layer.register_parameter("weight", nn.Parameter(empty, requires_grad=False))

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Pack this rank's shard into its rows."""
        refuse_integers(tensor)
        for rows, own in shard.plain(tensor):
            self._ops.pack(layer.get_parameter(suffix).data, self._rows, rows.start, own)

    def finish(self, layer: nn.Module) -> None:
        """There is nothing to repack."""

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T."""
        return self._ops.linear(x, layer.weight, self._rows)  # type: ignore[arg-type]

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows with these ids."""
        return self._ops.rows(layer.weight, self._rows, self._width, ids)  # type: ignore[arg-type]


class CpuLinear(PackedLinear):
    """A packed plain weight, with backends for quantized ones."""

    def __init__(self, ops: PackedOps, library: Library) -> None:
        super().__init__(ops)
        self._library = library

    def backend_for(self, spec: LayoutSpec) -> ints.PackedInts | floats.PackedFloats | None:
        """Return the backend of a layout; None: no kernel multiplies it."""
        if spec.is_float:
            of_floats = floats.ops_for(spec, self._library)
            return None if of_floats is None else floats.PackedFloats(of_floats)
        of_ints = ints.ops_for(spec, self._library)
        return None if of_ints is None else ints.PackedInts(of_ints)


class CpuExperts(PackedExperts):
    """The same for experts."""

    def __init__(self, ops: PackedOps, library: Library) -> None:
        super().__init__(ops)
        self._library = library

    def backend_for(
        self, spec: LayoutSpec
    ) -> ints.PackedIntExperts | floats.PackedFloatExperts | None:
        """Return the backend of a layout; None: no kernel multiplies it."""
        if spec.is_float:
            of_floats = floats.ops_for(spec, self._library)
            return None if of_floats is None else floats.PackedFloatExperts(of_floats)
        of_ints = None if spec.has_g_idx else ints.ops_for(spec, self._library)
        return None if of_ints is None else ints.PackedIntExperts(of_ints)
