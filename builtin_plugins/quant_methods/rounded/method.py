"""Every linear layer, all experts, embedding and head as integers; a weight is rounded as it loads
and no plain copy is kept.
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

from builtin_plugins.quant_methods.packed.experts import PackedExperts
from builtin_plugins.quant_methods.packed.method import PackedLinear
from builtin_plugins.quant_methods.rounded.in_torch import TorchOps
from core.api import EngineConfig, ExpertsMethod, LinearMethod, ModelError
from core.contracts import EmbeddingMethod
from core.models.layers.linear import PlainLinear

log = logging.getLogger(__name__)

GROUPS: Final = {8: 128, 4: 32}
"""Inputs that share a scale unless the user says otherwise: with few bits, small groups are what
keeps errors small.
"""


class Rounded:
    """Rounds plain weights to so many bits."""

    name = ""
    bits = 0

    def __init__(self, stated: Any, config: EngineConfig) -> None:
        if stated:
            raise ModelError(
                f"this checkpoint's weights are stored as {self.name!r} by its own account, and "
                f"--quantization {self.name} "
                "rounds plain weights; it reads no others. Take the checkpoint that this one was "
                "made from."
            )
        self._group = config.options.get("quantization_group") or GROUPS[self.bits]

    @cached_property
    def _ops(self) -> Any:
        """The kernels of CPUs, or torch, which the log is told."""
        library = load_library()
        if library is not None:
            return QuantizedOps(library, self.bits, self._group)
        log.warning(
            "%s: no kernel of this device multiplies by rounded weights; each product makes its "
            "weight plain first, and "
            "one of a single row takes some 13 times as long as with a plain checkpoint",
            self.name,
        )
        return TorchOps(self.bits, self._group)

    def ops_on(self, method: Any) -> Any:
        """Return the kernels of the device whose method for plain weights this is, if that has some
        of its own.
        """
        rounds = getattr(method, "rounds", None)
        return self._ops if rounds is None else rounds(self.bits, self._group)

    def linear(self, prefix: str) -> LinearMethod:
        """Return a fresh method."""
        del prefix
        return RoundedLinear(self)

    def head(self, prefix: str) -> LinearMethod:
        """Return a fresh method."""
        return self.embedding(prefix)

    def embedding(self, prefix: str) -> EmbeddingMethod:
        """Return a fresh method, which a head may be tied to."""
        del prefix
        return RoundedLinear(self)

    def experts(self, prefix: str) -> ExpertsMethod:
        """Return a fresh method."""
        del prefix
        return RoundedExperts(self)


class Int8(Rounded):
    """Eight bits."""

    name = "int8"
    bits = 8


class ExpertsInt8:
    """Eight bits for experts alone."""

    name = "experts_int8"

    def __init__(self, stated: Any, config: EngineConfig) -> None:
        self._rounded = Int8(stated, config)

    def linear(self, prefix: str) -> LinearMethod:
        """Return a method for plain weights."""
        del prefix
        return PlainLinear()

    def experts(self, prefix: str) -> ExpertsMethod:
        """Return a fresh method."""
        return self._rounded.experts(prefix)


class Int4(Rounded):
    """Four bits."""

    name = "int4"
    bits = 4


class OnDevice:
    """Of layers and of experts: their kernels are known when their device is."""

    _ops: Any

    def __init__(self, rounded: Rounded) -> None:
        super().__init__(None)  # type: ignore[call-arg]  # `onto` takes them
        self._rounded = rounded

    def onto(self, plain: Callable[[], Any]) -> None:
        """Take the kernels of the device."""
        self._ops = self._rounded.ops_on(plain())


class RoundedLinear(OnDevice, PackedLinear):
    """One weight matrix [out, in], whose rows come back in the model's dtype."""

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register `weight`, bytes."""
        super().create(layer, in_features, out_features, dtype)
        self._dtype = dtype

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of these numbers."""
        rows: torch.Tensor = self._ops.rows(layer.weight, self._rows, self._width, ids, self._dtype)
        return rows


class RoundedExperts(OnDevice, PackedExperts):
    """The matrices of all experts."""
