"""Labels of a scene: what the tower learns to name, one at each patch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

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
"""Labels with their values."""


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


def label_vectors(scenes: Sequence[Scene]) -> Tensor:
    """Return a one for each value that a scene has. [scenes, values of all labels]"""
    parts = [
        F.one_hot(_values(name, scenes), len(values)).float() for name, values in LABELS.items()
    ]
    return torch.cat(parts, dim=-1)


def label_loss(
    scores: Mapping[str, Tensor], scenes: Sequence[Scene]
) -> tuple[Tensor, dict[str, float]]:
    """Return the loss of the scores at each patch, and the share of each label that is right."""
    losses = []
    right = {}
    for name, found in scores.items():
        values = _values(name, scenes)
        expected = values[:, None].expand(found.shape[:2])
        losses.append(F.cross_entropy(found.flatten(0, 1), expected.flatten()))
        right[name] = found.mean(1).argmax(-1) == values
    shares = {name: each.float().mean().item() for name, each in right.items()}
    together = torch.stack(list(right.values())).all(0)
    return torch.stack(losses).sum(), {"all": together.float().mean().item(), **shares}


def _values(name: str, scenes: Sequence[Scene]) -> Tensor:
    return torch.tensor([LABELS[name].index(labels(scene)[name]) for scene in scenes])
