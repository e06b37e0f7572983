"""Round-to-nearest int8 and int4 for linear layers, experts, embedding and head.

Weights are rounded on load; no plain copy is held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

import torch
from core_kernels.library import load_library
from core_kernels.quantized import QuantizedOps
from torch import nn

from builtin_plugins.quant_methods.cpu_packed.experts import PackedExperts
from builtin_plugins.quant_methods.cpu_packed.method import PackedLinear
from builtin_plugins.quant_methods.rtn.torch_ops import TorchOps
from core.api import EngineConfig, ModelError
from core.model_spec.quant_method import EmbeddingMethod, ExpertsMethod, LinearMethod
from core.models.layers.linear import PlainLinear

log = logging.getLogger(__name__)

GROUPS: Final = {8: 128, 4: 32}
"""Default inputs per scale: with few bits, small groups bound the error."""


class RoundToNearest:
    """Rounds plain weights to `bits`."""

    name = ""
    bits = 0

    def __init__(self, stated: Any, config: EngineConfig) -> None:
        if stated:
            raise ModelError(
                f"--quantization {self.name} rounds plain weights; this checkpoint is already "
                f"quantized as {self.name!r}. Use the checkpoint that it was made from."
            )
        self._group = config.options.get("quantization_group") or GROUPS[self.bits]

    @cached_property
    def _ops(self) -> Any:
        """The CPU kernels; without them torch, with a log line."""
        library = load_library()
        if library is not None:
            return QuantizedOps(library, self.bits, self._group)
        log.warning(
            "%s: no kernel of this device multiplies by rounded weights; each product dequantizes "
            "its weight, which takes some 13 times as long for a single row as a plain checkpoint",
            self.name,
        )
        return TorchOps(self.bits, self._group)

    def ops_for(self, method: Any) -> Any:
        """Return the rounding kernels of a device's plain method, or the CPU's if it has none."""
        rounding_ops = getattr(method, "rounding_ops", None)
        return self._ops if rounding_ops is None else rounding_ops(self.bits, self._group)

    def linear(self, prefix: str) -> LinearMethod:
        """Return a new linear method."""
        del prefix
        return RtnLinear(self)

    def head(self, prefix: str) -> LinearMethod:
        """Return a new method."""
        return self.embedding(prefix)

    def embedding(self, prefix: str) -> EmbeddingMethod:
        """Return a new method, which a tied head may share."""
        del prefix
        return RtnLinear(self)

    def experts(self, prefix: str) -> ExpertsMethod:
        """Return a new experts method."""
        del prefix
        return RtnExperts(self)


class Int8(RoundToNearest):
    """Eight bits."""

    name = "int8"
    bits = 8


class ExpertsInt8:
    """Eight bits for experts only."""

    name = "experts_int8"

    def __init__(self, stated: Any, config: EngineConfig) -> None:
        self._rtn = Int8(stated, config)
        self._has_experts = False

    def linear(self, prefix: str) -> LinearMethod:
        """Return the method for plain weights."""
        del prefix
        return PlainLinear()

    def experts(self, prefix: str) -> ExpertsMethod:
        """Return a new experts method."""
        self._has_experts = True
        return self._rtn.experts(prefix)

    def check_used(self) -> None:
        """Raise `ModelError` for a model without experts."""
        if not self._has_experts:
            raise ModelError(
                "--quantization: got experts_int8; expected a model with experts, and this one has "
                "none. Use int8 to round all of its layers."
            )


class Int4(RoundToNearest):
    """Four bits."""

    name = "int4"
    bits = 4


class DeviceOps:
    """Mixin of layers and experts: sets their kernels once the device is known."""

    _ops: Any

    def __init__(self, rtn: RoundToNearest) -> None:
        super().__init__(None)  # type: ignore[call-arg]  # `use_plain_method` takes them
        self._rtn = rtn

    def use_plain_method(self, plain: Callable[[], Any]) -> None:
        """Set the kernels of the device."""
        self._ops = self._rtn.ops_for(plain())


class RtnLinear(DeviceOps, PackedLinear):
    """One weight matrix [out, in]; embedding rows are returned in the model's dtype."""

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register `weight`, bytes."""
        super().create(layer, in_features, out_features, dtype)
        self._dtype = dtype

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows with these ids."""
        rows: torch.Tensor = self._ops.rows(layer.weight, self._rows, self._width, ids, self._dtype)
        return rows


class RtnExperts(DeviceOps, PackedExperts):
    """The matrices of all experts."""
