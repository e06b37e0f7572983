"""Linear layers whose weights are stored in formats: tensors are collected, unpacked once, and kept
as the device can.

A fused layer whose parts are stored unlike is kept part by part. Knows no format and no kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from builtin_plugins.quant_methods.stored.keeping import Formats, PlainKeeper, keeper_of
from core.errors import ModelError

if TYPE_CHECKING:
    from builtin_plugins.quant_methods.stored.formats import StoredFormat
    from core.contracts.part import Part


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows of a layer that one keeper has, and the module with their parameters."""

    keeper: Any
    holder: nn.Module
    rows: slice


class StoredLinear:
    """One linear layer, embedding or head."""

    def __init__(self, formats: Formats, prefix: str) -> None:
        self._formats = formats
        stored = formats.format_of(prefix)
        self.suffixes: tuple[str, ...] = ("weight",) if stored is None else stored.suffixes
        """Of the first part; `facts` has those of each."""
        self._plain: Callable[[], Any] = _nothing
        self._kept: dict[str, Kept] = {}
        self._distinct: list[Kept] = []
        self._arrived = Arrived()

    def onto(self, plain: Callable[[], Any]) -> None:
        """Take what makes the device's method for plain weights."""
        self._plain = plain

    def facts(self, prefix: str) -> Any:
        """Return who knows the tensors under a prefix: its format, or the method for plain weights."""
        return self._formats.format_of(prefix) or self._plain()

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register parameters: once, where all parts are stored alike, or for each part."""
        parts: dict[str, Part] = layer.parts  # type: ignore[assignment]
        stored = self._formats.formats_of(parts)
        kinds = {_kind(own) for own in stored.values()}
        if len(parts) == 1 or (len(kinds) == 1 and not _is_ordered(next(iter(stored.values())))):
            kept = Kept(
                keeper_of(
                    next(iter(stored.values())),
                    self._plain,
                    next(iter(parts.values())),
                    [in_features],
                ),
                layer,
                slice(0, out_features),
            )
            self._distinct = [kept]
            self._kept = dict.fromkeys(parts, kept)
        else:
            for index, (prefix, part) in enumerate(parts.items()):
                holder = nn.Module()
                holder.ops = layer.ops
                layer.add_module(f"part{index}", holder)
                self._kept[prefix] = Kept(
                    keeper_of(stored[prefix], self._plain, part, [in_features]), holder, part.target
                )
            self._distinct = sorted(self._kept.values(), key=lambda kept: kept.rows.start)
        for kept in self._distinct:
            kept.keeper.create(kept.holder, in_features, kept.rows.stop - kept.rows.start, dtype)
        for prefix, part in parts.items():
            if isinstance(self._kept[prefix].keeper, PlainKeeper):
                self._formats.unaided.add(
                    in_features * (part.target.stop - part.target.start), stored[prefix], dtype
                )

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Keep a tensor until the others of its prefix are there; then unpack them."""
        prefix = next(prefix for prefix, own in layer.parts.items() if own is part)  # type: ignore[union-attr,operator]
        kept = self._kept[prefix]
        stored = self._formats.format_of(prefix)
        first = kept.rows.start
        if stored is None:
            local = tuple(
                (own, slice(to.start - first, to.stop - first)) for own, to in part.pieces
            )
            kept.keeper.method.load(kept.holder, suffix, tensor, replace(part, pieces=local))
            return
        tensors = self._arrived.take(prefix, stored, suffix, tensor, part)
        if tensors is not None:
            self._formats.unaided.say()
            for rows, layout in stored.unpacked(tensors, part):
                kept.keeper.put(kept.holder, slice(rows.start - first, rows.stop - first), layout)

    def finish(self, layer: nn.Module) -> None:
        """Refuse tensors that came without the others of their prefix, and let methods of plain
        weights repack.
        """
        self._arrived.check()
        for kept in self._distinct:
            if isinstance(kept.keeper, PlainKeeper):
                kept.keeper.method.finish(kept.holder)

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T."""
        found: list[torch.Tensor] = [kept.keeper.apply(kept.holder, x) for kept in self._distinct]
        return found[0] if len(found) == 1 else torch.cat(found, -1)

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of these numbers."""
        (kept,) = self._distinct
        rows: torch.Tensor = kept.keeper.embed(kept.holder, ids)
        return rows


class Arrived:
    """Tensors whose others have not come yet, by prefix."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, torch.Tensor]] = {}

    def take(
        self, prefix: str, stored: StoredFormat, suffix: str, tensor: torch.Tensor, part: Part
    ) -> dict[str, torch.Tensor] | None:
        """Return all tensors of a prefix when this is the last one; none of a model that is only
        planned.
        """
        if suffix in stored.optional_suffixes:
            if not tensor.is_meta:
                stored.check_optional(suffix, tensor, part)
            return None
        waiting = self._waiting.setdefault(prefix, {})
        waiting[suffix] = tensor
        if len(waiting) < len(stored.suffixes):
            return None
        del self._waiting[prefix]
        return None if tensor.is_meta else waiting

    def check(self) -> None:
        """Raise `ModelError` for tensors that came alone."""
        alone = [
            f"{prefix}.{suffix}" for prefix, found in self._waiting.items() for suffix in found
        ]
        self._waiting.clear()
        if alone:
            raise ModelError(
                f"{', '.join(alone[:6])} came alone; send all tensors of a layer's weight together."
            )


def _kind(stored: StoredFormat | None) -> Any:
    """Return what parts have in common that one keeper may have together."""
    return None if stored is None else stored.grouping or "floats"


def _is_ordered(stored: StoredFormat | None) -> bool:
    return stored is not None and stored.grouping is not None and stored.grouping.is_ordered


def _nothing() -> Any:
    raise AssertionError("the layer calls `onto` before anything else")
