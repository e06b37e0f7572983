"""Who keeps a canonical layout: the device's own method where it has one, else that of plain
weights. Knows no format.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.layouts import Grouping, Layout, pieces
from core.contracts.part import Part

log = logging.getLogger(__name__)


class LinearKeeper(Protocol):
    """How a device keeps one layout and multiplies by it: what `keeps(grouping)` of its
    `LinearMethod` returns.
    """

    def create(
        self, layer: nn.Module, in_features: int, out_features: int, dtype: torch.dtype
    ) -> None:
        """Register the parameters on `layer`."""

    def put(self, layer: nn.Module, rows: slice, layout: Layout) -> None:
        """Fill rows of the layer in the memory it has; every row comes before the first product,
        and may come again.
        """

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T."""

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of these numbers."""


class ExpertsKeeper(Protocol):
    """The same for experts; otherwise an `ExpertsMethod`."""

    def create(
        self, layer: nn.Module, num_experts: int, width: int, hidden: int, dtype: torch.dtype
    ) -> None:
        """Register the parameters on `layer`."""

    def put(self, layer: nn.Module, rows: slice, layout: Layout, matrix: str, expert: int) -> None:
        """Fill rows of one expert's matrix."""

    def apply(
        self, layer: nn.Module, x: torch.Tensor, shares: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return what the chosen experts give."""

    def product(
        self, layer: nn.Module, matrix: str, x: torch.Tensor, experts: torch.Tensor
    ) -> torch.Tensor:
        """Return each row's product with the matrix of its expert."""


class PlainKeeper:
    """Keeps any layout as the plain weights that it means, by a method for those; linear layers and
    experts alike.
    """

    def __init__(self, method: Any) -> None:
        self.method = method
        self.apply = method.apply
        self._dtype = torch.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)  # embed, product: where it has them

    def create(self, layer: nn.Module, *sizes: Any) -> None:
        """Register plain weights."""
        self._dtype = sizes[-1]
        self.method.create(layer, *sizes)

    def put(
        self, layer: nn.Module, rows: slice, layout: Layout, matrix: str = "", expert: int = 0
    ) -> None:
        """Make rows plain, few at a time."""
        width = layout.shape[1]
        for own, weight in pieces(layout):
            part = Part(
                pieces=(
                    (slice(0, len(weight)), slice(rows.start + own.start, rows.start + own.stop)),
                ),
                columns_in=slice(0, width),
                out_features=len(weight),
                in_features=width,
                matrix=matrix,
                expert=expert,
            )
            self.method.load(layer, "weight", weight.to(self._dtype), part)


def keeper_of(
    stored: StoredFormat | None,
    plain: Callable[[], Any],
    part: Part | None,
    inputs: Sequence[int] = (),
) -> Any:
    """Return the device's keeper of what a format unpacks to; where it has none, that of plain
    weights.

    Columns that have an order are sorted by their groups, which needs all of them: a rank that has
    some makes them plain. So does one whose rows end inside of groups that run on. `part`: one of
    the weights; None where it is not known yet. `inputs`: how many columns the rank's weights have.
    """
    method = plain()
    keeps: Callable[[Grouping], Any] | None = getattr(method, "keeps", None)
    grouping = None if stored is None else stored.grouping
    is_whole = part is not None and part.columns_in.stop - part.columns_in.start == part.in_features
    if keeps is None or grouping is None or (grouping.is_ordered and not is_whole):
        return PlainKeeper(method)
    if grouping.runs_on and grouping.group > 0 and any(count % grouping.group for count in inputs):
        return PlainKeeper(method)
    return keeps(grouping) or PlainKeeper(method)


class Formats(Protocol):
    """Who knows which format each weight of a checkpoint is stored in."""

    unaided: Unaided

    def format_of(self, prefix: str) -> StoredFormat | None:
        """Return the format of the weight with this prefix; None: it is plain."""

    def formats_of(self, parts: Mapping[str, Part]) -> dict[str, StoredFormat | None]:
        """Return the formats of a layer's weights.

        Raises `ModelError` where one cannot have its sizes, or cannot be cut so.
        """


class Unaided:
    """Counts the weights that no kernel here keeps as they are stored, and says so once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._weights = self._more_bytes = 0.0
        self._dtype = ""
        self._is_said = False

    def add(self, numbers: int, stored: StoredFormat | None, dtype: torch.dtype) -> None:
        """Count a weight of so many numbers that becomes plain, where it is not stored so."""
        if stored is None:
            return
        self._weights += 1
        self._more_bytes += numbers * (dtype.itemsize - stored.stored_bits / 8)
        self._dtype = str(dtype).removeprefix("torch.")

    def say(self) -> None:
        """Log it, if there is anything to say and nobody has."""
        if self._weights and not self._is_said:
            log.warning(
                "%s: no kernel of this device multiplies by %d of the weights as they are stored; "
                "they are unpacked and compute "
                "as %s, no faster than a plain checkpoint, with %.1f MB more than stored",
                self._name, self._weights, self._dtype, max(self._more_bytes, 0) / 1e6,
            )  # fmt: skip
        self._is_said = True
