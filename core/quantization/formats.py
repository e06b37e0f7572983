"""What a stored format is: facts about the tensors of one linear layer, or of one expert's. Knows no config and no layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from core.errors import ModelError
from core.quantization.layouts import Grouping, Layout

if TYPE_CHECKING:
    from core.contracts.part import Part


class StoredFormat:
    """How one weight [out, in] lies in tensors. Stateless: layers of one kind may share it.

    A subclass names its tensors, says their shapes, and unpacks them to a canonical layout.
    """

    suffixes: tuple[str, ...] = ()
    """Tensors behind a layer's prefix that a checkpoint must have."""
    optional_suffixes: tuple[str, ...] = ()
    """Tensors that it may have and that weights do not depend on."""
    other_names: Mapping[str, str] = {}
    """Other suffixes by which checkpoints name required tensors, and which those are."""
    reads_plain: bool = False
    """It rounds the plain weight, its only tensor, so experts' may come all in one tensor as well."""
    by_rows: bool = False
    """Some rows of a part are unpacked for their share of the whole part's time and memory."""
    grouping: Grouping | None = None
    """Facts of the integers or floats that it unpacks to; None: it unpacks to something else."""
    stored_bits: float = 8
    """Of a number with its share of scales, about; for what is said in the log."""

    def shape(self, suffix: str, part: Part) -> tuple[int, ...] | None:
        """Return what the whole tensor must have; None: `unpack` looks at it by itself."""
        return None

    def check(self, part: Part) -> None:
        """Raise `ModelError` where a weight of these sizes cannot be stored so, or not cut so."""

    def check_optional(self, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        """Raise `ModelError` for an optional tensor that says something else than the config."""

    def unpack(self, tensors: Mapping[str, torch.Tensor], part: Part) -> Layout:
        """Return the rank's part of the weight, rows in the layer's order. `tensors` are whole, by suffix."""
        raise NotImplementedError


def groups_of(part: Part, group: int) -> int:
    """Return how many groups a row has. Raises `ModelError` where they do not divide it."""
    size = part.in_features if group <= 0 else group
    if part.in_features % size:
        raise ModelError(
            f"has {part.in_features} inputs, which do not divide into groups of {size} as its quantization config says; "
            "restore the config from where the model came."
        )
    return part.in_features // size


def cut_groups(tensor: torch.Tensor, part: Part, group: int) -> torch.Tensor:
    """Return the rank's columns of a tensor [out, groups]; a single group is everybody's."""
    return tensor if tensor.shape[1] == 1 else part.columns(tensor, per=group)
