"""Experts whose weights are stored in formats, three tensors' worth for each expert.

Knows no format and no kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from builtin_plugins.quant_methods.stored.keeping import Formats, PlainKeeper, keeper_of
from builtin_plugins.quant_methods.stored.layers import Arrived
from core.errors import ModelError

if TYPE_CHECKING:
    from builtin_plugins.quant_methods.stored.formats import StoredFormat
    from core.contracts.part import Part


class KeptExperts:
    """The experts of one layer, all of them with one keeper.

    How their tensors come is said by who derives from it.
    """

    suffixes: tuple[str, ...] = ("weight",)

    def __init__(self) -> None:
        self._keeper: Any = None

    def onto(self, plain: Callable[[], Any]) -> None:
        """Take what makes the device's method for plain experts."""
        self._plain = plain

    def finish(self, layer: nn.Module) -> None:
        """Let a method of plain weights repack."""
        if isinstance(self._keeper, PlainKeeper):
            self._keeper.method.finish(layer)

    def apply(
        self, layer: nn.Module, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return what the chosen experts give."""
        out: torch.Tensor = self._keeper.apply(layer, x, shares, experts)
        return out

    def product(
        self, layer: nn.Module, matrix: str, x: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return each row's product with the matrix of its expert."""
        out: torch.Tensor = self._keeper.product(layer, matrix, x, experts)
        return out


class StoredExperts(KeptExperts):
    """Experts of formats, three tensors' worth for each. Those that are stored unlike become plain."""

    def __init__(self, formats: Formats, prefix: str) -> None:
        super().__init__()
        self._formats = formats
        self._prefix = prefix
        self._arrived = Arrived()
        self.endings: tuple[str, ...] = ("",)
        """A format has no word for all experts' weights in one tensor. Plain ones come so, whatever
        the config says of single
        experts: tools that quantize linear layers alone leave such a tensor as it is."""
        self._sizes: tuple[Any, ...] = ()
        self._is_filled = False

    def facts(self, prefix: str) -> Any:
        """Return who knows the tensors of one expert's matrix: its format, or the method for plain
        weights.
        """
        return self._formats.format_of(prefix) or self._plain()

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return the shape of all experts' plain weights."""
        return part.shape

    def create(
        self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register parameters for all of `layer.parts`."""
        parts: dict[str, Part] = layer.parts  # type: ignore[assignment]
        stored = self._formats.formats_of(parts)
        if not parts:  # all experts' weights are in one tensor, which is plain
            own = self._formats.format_of(self._prefix)
            stored = {self._prefix: own if own is not None and own.reads_plain else None}
        kinds: dict[Any, StoredFormat | None] = {
            own and own.grouping: own for own in stored.values()
        }
        common = next(iter(kinds.values())) if len(kinds) == 1 else None
        ordered = common is not None and common.grouping is not None and common.grouping.is_ordered
        first = next(iter(parts.values()), None)
        self._keeper = keeper_of(None if ordered else common, self._plain, first, [hidden, width])
        self._keeper.create(layer, num_experts, width, hidden, dtype)
        self._sizes = num_experts, width, hidden, dtype
        if isinstance(self._keeper, PlainKeeper):
            for own in stored.values():
                self._formats.unaided.add(
                    width * hidden * (1 if parts else num_experts), own, dtype
                )

    def load(self, layer: nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Keep a tensor until the others of its matrix are there; then unpack them."""
        prefix = next(prefix for prefix, own in layer.parts.items() if own is part)  # type: ignore[union-attr,operator]
        stored = self._formats.format_of(prefix)
        if stored is not None and part.num_experts:
            stored = stored if stored.reads_plain else None
        if stored is None:
            self._plain_keeper(layer).method.load(layer, suffix, tensor, part)
            return
        if part.num_experts:
            self._formats.unaided.say()
            for expert in range(0 if tensor.is_meta else part.num_experts):
                one = replace(part, expert=expert, num_experts=0)
                self._put(layer, stored, {suffix: tensor[expert]}, one)
            return
        tensors = self._arrived.take(prefix, stored, suffix, tensor, part)
        if tensors is not None:
            self._formats.unaided.say()
            self._put(layer, stored, tensors, part)

    def _plain_keeper(self, layer: nn.Module) -> PlainKeeper:
        """Return who keeps plain weights; it takes the place of one that nothing has come for, and
        that one's parameters.
        """
        if not isinstance(self._keeper, PlainKeeper):
            if self._is_filled:
                raise ModelError(
                    "of these experts single ones came before, stored as the quantization config "
                    "says; all of them in one "
                    "plain tensor are another layout. Send them as the checkpoint has them."
                )
            self._keeper = PlainKeeper(self._plain())
            self._keeper.create(layer, *self._sizes)
        return self._keeper

    def _put(
        self, layer: nn.Module, stored: StoredFormat, tensors: dict[str, torch.Tensor], part: Part
    ) -> None:
        self._is_filled = True
        for rows, layout in stored.unpacked(tensors, part):
            self._keeper.put(layer, rows, layout, part.matrix, part.expert)

    def finish(self, layer: nn.Module) -> None:
        """Refuse tensors that came without the others of their matrix, and let a method of plain
        weights repack.
        """
        self._arrived.check()
        super().finish(layer)
