"""Backends of canonical layouts: the device's quantized kernels, or dequantized weights.

Independent of formats.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn

from builtin_plugins.quant_methods.stored.activations import ActivationQuantization
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.layouts import Layout, LayoutSpec, dequantize_chunks
from core.model_spec.weight_shard import WeightShard
from core.models.dtypes import dtype_name

log = logging.getLogger(__name__)


class LinearBackend(Protocol):
    """Stores one layout on a device and multiplies by it. `LinearMethod.backend_for` returns it.

    Optional: `quantized_inputs()` of a `LinearMethod`; `rounds_inputs()`: whether the kernels
    round x as the checkpoint specifies.
    """

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register the parameters on `layer`."""

    def write_rows(self, layer: nn.Module, rows: slice, layout: Layout) -> None:
        """Write rows into the layer's memory.

        All rows are written before the first product; they may be written again.
        """

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T."""

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows with these ids."""


class ExpertsBackend(Protocol):
    """Stores the layout of all experts; otherwise an `ExpertsMethod`.

    Optional: `rounds_inputs()`.
    """

    def create(
        self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register the parameters on `layer`."""

    def write_rows(
        self, layer: nn.Module, rows: slice, layout: Layout, matrix: str, expert: int
    ) -> None:
        """Write rows of one expert's matrix."""

    def apply(
        self, layer: nn.Module, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum of the chosen experts' outputs."""

    def product(
        self, layer: nn.Module, matrix: str, x: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return each row's product with the matrix of its expert."""


class DequantizedBackend:
    """Dequantizes any layout and hands it to the plain method; for linear layers and experts."""

    def __init__(self, method: Any) -> None:
        self.method = method
        self.apply = method.apply
        self._dtype = torch.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)  # embed and product, if the method has them

    def create(self, layer: nn.Module, *sizes: Any) -> None:
        """Register plain weights."""
        self._dtype = sizes[-1]
        self.method.create(layer, *sizes)

    def write_rows(
        self, layer: nn.Module, rows: slice, layout: Layout, matrix: str = "", expert: int = 0
    ) -> None:
        """Dequantize rows, a few at a time."""
        width = layout.shape[1]
        for own, weight in dequantize_chunks(layout):
            shard = WeightShard(
                pieces=(
                    (slice(0, len(weight)), slice(rows.start + own.start, rows.start + own.stop)),
                ),
                columns_in=slice(0, width),
                out_features=len(weight),
                in_features=width,
                matrix=matrix,
                expert=expert,
            )
            self.method.load(layer, "weight", weight.to(self._dtype), shard)


def select_backend(
    stored: StoredFormat | None,
    plain: Callable[[], Any],
    shard: WeightShard | None,
    inputs: Sequence[int] = (),
    *,
    rounds_inputs: bool = True,
) -> Any:
    """Return the device's backend for a format, or the dequantized one if it has none.

    Columns with a g_idx are sorted by group, which needs all of them: a rank with some of the
    columns dequantizes. So does a rank with rows that end inside groups. `shard`: one of
    the weights, None if not known yet. `inputs`: column counts of this rank's weights.
    `rounds_inputs`: whether kernels may round inputs to the format's `activation_bits`.
    """
    method = plain()
    backend_for: Callable[[LayoutSpec], Any] | None = getattr(method, "backend_for", None)
    spec = None if stored is None else stored.layout_spec
    is_whole = (
        shard is not None and shard.columns_in.stop - shard.columns_in.start == shard.in_features
    )
    if backend_for is None or spec is None or (spec.has_g_idx and not is_whole):
        return DequantizedBackend(method)
    if spec.spans_rows and spec.group_size > 0 and any(count % spec.group_size for count in inputs):
        return DequantizedBackend(method)
    if not rounds_inputs:
        spec = replace(spec, activation_bits=16)
    return backend_for(spec) or DequantizedBackend(method)


class Formats(Protocol):
    """Looks up the format of each checkpoint weight."""

    fallback: DequantizedFallback
    activations: ActivationQuantization

    def format_of(self, prefix: str) -> StoredFormat | None:
        """Return the format of the weight with this prefix; None: it is plain."""

    def checked_formats(self, parts: Mapping[str, WeightShard]) -> dict[str, StoredFormat | None]:
        """Return the formats of a layer's weights.

        Raises `ModelError` for sizes that a format cannot store or shard.
        """


class DequantizedFallback:
    """Counts the weights that no kernel multiplies in their stored format, and logs them once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._weights = self._extra_bytes = 0.0
        self._dtype = ""
        self._is_logged = False

    def add(self, numbers: int, stored: StoredFormat | None, dtype: torch.dtype) -> None:
        """Count a weight of `numbers` numbers that is dequantized.

        Format None: the weight was plain.
        """
        if stored is None:
            return
        self._weights += 1
        self._extra_bytes += numbers * (dtype.itemsize - stored.bits_per_weight / 8)
        self._dtype = dtype_name(dtype)

    def log_once(self) -> None:
        """Log the count, unless it is zero or was logged before."""
        if self._weights and not self._is_logged:
            log.warning(
                "%s: no kernel of this device multiplies by %d of the weights as they are stored; "
                "they are dequantized and computed in %s, no faster than a plain checkpoint, with "
                "%.1f MB more than stored",
                self._name, self._weights, self._dtype, max(self._extra_bytes, 0) / 1e6,
            )  # fmt: skip
        self._is_logged = True
