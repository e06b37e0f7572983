"""Linear layers with quantized checkpoint weights: collects tensors, unpacks them, fills a backend.

A fused layer with parts of different formats has one backend per part. Independent of formats
and kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from builtin_plugins.quant_methods.stored.activations import ActivationScheme, InputRounding
from builtin_plugins.quant_methods.stored.backends import (
    DequantizedBackend,
    Formats,
    select_backend,
)
from core.api import ModelError

if TYPE_CHECKING:
    from builtin_plugins.quant_methods.stored.formats import StoredFormat
    from core.model_spec.quant_method import QuantizedInputs
    from core.model_spec.weight_shard import WeightShard


@dataclass(slots=True)
class BackendRows:
    """Rows of a layer on one backend, and the module with their parameters."""

    backend: Any
    holder: nn.Module
    rows: slice
    activations: ActivationScheme | None
    """How the checkpoint expects x to be rounded."""
    rounding: InputRounding | None = None
    """Rounding of x before the product; None: x is not rounded, or by the backend."""

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T for these rows."""
        x = x if self.rounding is None else self.rounding(x)
        out: torch.Tensor = self.backend.apply(self.holder, x)
        return out


class StoredLinear:
    """One linear layer, embedding or head."""

    def __init__(self, formats: Formats, prefix: str) -> None:
        self._formats = formats
        stored = formats.format_of(prefix)
        self.suffixes: tuple[str, ...] = ("weight",) if stored is None else stored.suffixes
        """Suffixes of the first part; `tensor_spec` has those of each."""
        self._plain: Callable[[], Any] = _nothing
        self._by_prefix: dict[str, BackendRows] = {}
        self._distinct: list[BackendRows] = []
        self._pending = PendingTensors()

    def use_plain_method(self, plain: Callable[[], Any]) -> None:
        """Set the factory of the device's method for plain weights."""
        self._plain = plain

    def tensor_spec(self, prefix: str) -> Any:
        """Return what describes the tensors of a prefix: its format or the plain method."""
        return self._formats.format_of(prefix) or self._plain()

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register parameters: once if all parts share a format, otherwise per part."""
        parts: dict[str, WeightShard] = layer.parts  # type: ignore[assignment]
        stored = self._formats.checked_formats(parts)
        kinds = {_kind(own) for own in stored.values()}
        if len(parts) == 1 or (len(kinds) == 1 and not _has_g_idx(next(iter(stored.values())))):
            own_rows = self._backend_rows(
                next(iter(stored.values())),
                next(iter(parts.values())),
                layer,
                slice(0, out_features),
                in_features,
            )
            self._distinct = [own_rows]
            self._by_prefix = dict.fromkeys(parts, own_rows)
        else:
            for index, (prefix, shard) in enumerate(parts.items()):
                holder = nn.Module()
                holder.ops = layer.ops
                layer.add_module(f"part{index}", holder)
                self._by_prefix[prefix] = self._backend_rows(
                    stored[prefix], shard, holder, shard.target, in_features
                )
            self._distinct = sorted(
                self._by_prefix.values(), key=lambda own_rows: own_rows.rows.start
            )
        for own_rows in self._distinct:
            own_rows.backend.create(
                own_rows.holder, in_features, own_rows.rows.stop - own_rows.rows.start, dtype
            )
            own_rows.rounding = self._formats.activations.rounding_for(
                own_rows.activations, own_rows.backend
            )
        for prefix, shard in parts.items():
            if isinstance(self._by_prefix[prefix].backend, DequantizedBackend):
                self._formats.fallback.add(
                    in_features * (shard.target.stop - shard.target.start), stored[prefix], dtype
                )

    def _backend_rows(
        self,
        stored: StoredFormat | None,
        shard: WeightShard,
        holder: nn.Module,
        rows: slice,
        in_features: int,
    ) -> BackendRows:
        activations = self._formats.activations
        backend = select_backend(
            stored, self._plain, shard, [in_features], rounds_inputs=activations.by_kernels
        )
        return BackendRows(backend, holder, rows, None if stored is None else stored.activations)

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Hold a tensor until its prefix is complete, then unpack it."""
        prefix = next(prefix for prefix, own in layer.parts.items() if own is shard)  # type: ignore[union-attr,operator]
        own_rows = self._by_prefix[prefix]
        stored = self._formats.format_of(prefix)
        first = own_rows.rows.start
        if stored is None:
            local = tuple(
                (own, slice(to.start - first, to.stop - first)) for own, to in shard.pieces
            )
            own_rows.backend.method.load(
                own_rows.holder, suffix, tensor, replace(shard, pieces=local)
            )
            return
        if own_rows.rounding is not None:
            own_rows.rounding.load(prefix, suffix, tensor)
        tensors = self._pending.add(prefix, stored, suffix, tensor, shard)
        if tensors is not None:
            self._formats.fallback.log_once()
            self._formats.activations.log_once()
            for rows, layout in stored.unpack_chunks(tensors, shard):
                own_rows.backend.write_rows(
                    own_rows.holder, slice(rows.start - first, rows.stop - first), layout
                )

    def finish(self, layer: nn.Module) -> None:
        """Reject incomplete prefixes and let plain methods repack their weights."""
        self._pending.check_complete()
        for own_rows in self._distinct:
            if isinstance(own_rows.backend, DequantizedBackend):
                own_rows.backend.method.finish(own_rows.holder)
            if own_rows.rounding is not None:
                own_rows.rounding.finish()

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T."""
        found = [own_rows.apply(x) for own_rows in self._distinct]
        return found[0] if len(found) == 1 else torch.cat(found, -1)

    def quantized_inputs(self, layer: nn.Module) -> QuantizedInputs | None:
        """Return the kernels of the backend; None without them, or with several backends."""
        first = self._distinct[0]
        find = getattr(first.backend, "quantized_inputs", None)
        takes_plain = first.rounding is not None or len(self._distinct) > 1
        return None if find is None or takes_plain else find()

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows with these ids."""
        (own_rows,) = self._distinct
        rows: torch.Tensor = own_rows.backend.embed(own_rows.holder, ids)
        return rows


class PendingTensors:
    """Tensors of incomplete weights, by prefix."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, torch.Tensor]] = {}

    def add(
        self,
        prefix: str,
        stored: StoredFormat,
        suffix: str,
        tensor: torch.Tensor,
        shard: WeightShard,
    ) -> dict[str, torch.Tensor] | None:
        """Return all tensors of a prefix once it is complete.

        Meta tensors (a planned model) return None.
        """
        if suffix in stored.optional_suffixes:
            if not tensor.is_meta:
                stored.check_optional(suffix, tensor, shard)
            return None
        waiting = self._waiting.setdefault(prefix, {})
        waiting[suffix] = tensor
        if len(waiting) < len(stored.suffixes):
            return None
        del self._waiting[prefix]
        return None if tensor.is_meta else waiting

    def check_complete(self) -> None:
        """Raise `ModelError` for tensors of incomplete weights."""
        alone = [
            f"{prefix}.{suffix}" for prefix, found in self._waiting.items() for suffix in found
        ]
        self._waiting.clear()
        if alone:
            raise ModelError(
                f"{', '.join(alone[:6])} arrived without the other tensors of the weight; send "
                "them together."
            )


def _kind(stored: StoredFormat | None) -> Any:
    """Return the key that parts on one backend have in common."""
    return None if stored is None else (stored.layout_spec or "floats", stored.activations)


def _has_g_idx(stored: StoredFormat | None) -> bool:
    return stored is not None and stored.layout_spec is not None and stored.layout_spec.has_g_idx


def _nothing() -> Any:
    raise AssertionError("`use_plain_method` is called before all else")
