"""The tower: embeds the mean colours of an image's quarters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from core.api import ModelError
from core.api.models import BuildContext
from core.model_spec.tower import EncodedItem, RopePositions, TowerFacts


@dataclass(frozen=True)
class AcmeTowerSpec:
    """The tower as data."""

    facts: TowerFacts
    hidden_size: int

    def build(self, context: BuildContext) -> AcmeTower:
        """Return the tower without weights."""
        return AcmeTower(self, context)


class AcmeTower(nn.Module):
    """One row for each placeholder token of an image."""

    def __init__(self, spec: AcmeTowerSpec, context: BuildContext) -> None:
        super().__init__()
        self.facts = spec.facts
        where = {"device": context.device, "dtype": context.dtype}
        self.project = nn.Linear(3, spec.hidden_size, bias=False, **where).requires_grad_(False)

    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name and shape of its checkpoint tensors."""
        return {"vision.project.weight": tuple(self.project.weight.shape)}

    def load_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load all tensors that the decoder does not expect. Raises `ModelError`."""
        expected = self.weight_shapes()
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if found != expected:
            name = min(found.items() ^ expected.items())[0]
            raise ModelError(
                f"{name}: got shape {found.get(name)}; expected {expected.get(name)}. Restore the "
                "original files."
            )
        self.project.weight.copy_(tensors["vision.project.weight"])

    def encode(self, modality: str, inputs: Mapping[str, torch.Tensor]) -> EncodedItem:
        """Return one image encoded; `inputs` are the tensors of `AcmeProcessor`."""
        return EncodedItem(self.project(inputs["colours"].to(self.project.weight.dtype)))

    def rope_positions(
        self, token_ids: Sequence[int], items: Iterable[tuple[str, Mapping[str, torch.Tensor]]]
    ) -> RopePositions | None:
        """Return None: one position for each token."""
        return None
