"""What the tower learns to name before it answers: one label of the scene for each patch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.demo_model.vision.model import NUM_TOKENS, TOWER
from examples.demo_model.vision.scenes import (
    COLOURS,
    DIGITS,
    KINDS,
    LARGEST_COUNT,
    LETTERS,
    PLACES,
    SHAPES,
    Scene,
)

NONE: Final = ""
LABELS: Final[dict[str, tuple[str, ...]]] = {
    "kind": KINDS,
    "glyph": (*DIGITS, *LETTERS, NONE),
    "shape": (*SHAPES, NONE),
    "colour": tuple(COLOURS),
    "background": tuple(COLOURS),
    "count": tuple(str(count + 1) for count in range(LARGEST_COUNT)),
    "place": (*PLACES, NONE),
}
"""Labels of a scene, with their values. A label's patches are every seventh, from its own on."""


def labels(scene: Scene) -> dict[str, str]:
    """Return the labels of a scene."""
    name = scene.things[0].name
    return {
        "kind": scene.kind,
        "glyph": NONE if name in SHAPES else name,
        "shape": name if name in SHAPES else NONE,
        "colour": scene.colour,
        "background": scene.background,
        "count": str(len(scene.things)),
        "place": scene.place,
    }


class LabelHeads(nn.Module):
    """A linear layer for each label, on the patches that are to hold it."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict(
            {name: nn.Linear(TOWER.hidden_size, len(values)) for name, values in LABELS.items()}
        )

    def loss(self, features: Tensor, scenes: Sequence[Scene]) -> tuple[Tensor, Tensor]:
        """Return the loss, and for each scene and label whether it is right.

        features: [scenes, patches, hidden]
        """
        found = [labels(scene) for scene in scenes]
        losses = []
        right = []
        for i, (name, head) in enumerate(self.heads.items()):
            patches = features[:, i : NUM_TOKENS : len(LABELS)]
            scores = head(patches)
            values = torch.tensor([LABELS[name].index(each[name]) for each in found])
            expected = values[:, None].expand(scores.shape[:2])
            losses.append(F.cross_entropy(scores.flatten(0, 1), expected.flatten()))
            right.append((scores.argmax(-1) == expected).all(1))
        return torch.stack(losses).sum(), torch.stack(right, 1)
