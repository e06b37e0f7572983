"""The vision tower of `demo:vision`: it names what a drawing shows, and says so in soft tokens.

A small vision transformer has a label at each patch (what is drawn, its colour, how many, where).
The likeliest labels, as one vector of ones and zeros, become embeddings that were trained until
the language model answers from them. So the tower's mistakes are wrong labels, and nothing in
between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import SiglipVisionConfig, SiglipVisionModel

from core.api import ModelError
from core.api.models import BuildContext
from core.model_spec.tower import EncodedItem, RopePositions, TowerFacts

PREFIX: Final = "vision."
"""Prefix of the tower's tensors in the checkpoint."""
SCALE: Final = "_scale"
"""Suffix of the scales of a matrix that is stored as int8, one for each row."""
GAIN: Final = 0.118
"""Standard deviation of soft tokens at first: that of the language model's embeddings."""


@dataclass(frozen=True, slots=True)
class TowerSizes:
    """Sizes of a tower, from the checkpoint's config."""

    vision: Mapping[str, Any]
    """Settings of the vision transformer."""
    labels: Mapping[str, int]
    """Number of values of each label."""
    num_tokens: int
    """Soft tokens of an image: one for each patch."""
    hidden_size: int
    """Size of the language model's embeddings."""
    width: int
    """Width of the layers between labels and soft tokens."""


class SoftTokens(nn.Module):
    """Makes soft tokens from labels."""

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__()
        self._shape = (-1, sizes.num_tokens, sizes.hidden_size)
        self.layers = nn.Sequential(
            nn.Linear(sum(sizes.labels.values()), sizes.width),
            nn.GELU(),
            nn.Linear(sizes.width, sizes.width),
            nn.GELU(),
            nn.Linear(sizes.width, sizes.num_tokens * sizes.hidden_size),
        )
        self.gain = nn.Parameter(torch.tensor(GAIN))

    def forward(self, labels: Tensor) -> Tensor:
        """Return soft tokens. labels: [images, values of all labels], ones and zeros"""
        tokens = self.layers(labels).view(self._shape)
        return F.layer_norm(tokens, tokens.shape[-1:]) * self.gain


class LabelTower(nn.Module):
    """Pixels to labels to soft tokens."""

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__()
        self._sizes = sizes
        transformer: Any = SiglipVisionModel(SiglipVisionConfig(**sizes.vision))
        transformer.post_layernorm = nn.Identity()  # the labels are read before it
        self.transformer = transformer
        width = sizes.vision["hidden_size"]
        self.heads = nn.ModuleDict(
            {name: nn.Linear(width, count) for name, count in sizes.labels.items()}
        )
        self.soft_tokens = SoftTokens(sizes)

    def scores(self, pixels: Tensor) -> dict[str, Tensor]:
        """Return each label's scores at its patches. [images, patches, values] each

        A label's patches are every n-th of n labels, from its own on. pixels: [images, 3, 64, 64]
        """
        hidden = self.transformer(pixels).last_hidden_state
        step = len(self.heads)
        return {name: head(hidden[:, i::step]) for i, (name, head) in enumerate(self.heads.items())}

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the soft tokens of images. [images, tokens, hidden]"""
        chosen = [
            F.one_hot(scores.mean(1).argmax(-1), scores.shape[-1])
            for scores in self.scores(pixels).values()
        ]
        found: Tensor = self.soft_tokens(torch.cat(chosen, dim=-1).float())
        return found


@dataclass(frozen=True, slots=True)
class DemoTowerSpec:
    """The tower as data."""

    facts: TowerFacts
    sizes: TowerSizes

    def build(self, context: BuildContext) -> DemoTower:
        """Return the tower, without weights."""
        return DemoTower(self, context)


class DemoTower(nn.Module):
    """The tower in the engine. It computes in float32, so every dtype gets the same labels."""

    def __init__(self, spec: DemoTowerSpec, context: BuildContext) -> None:
        super().__init__()
        self.facts = spec.facts
        self._dtype = context.dtype
        with torch.device(context.device):
            self.net = LabelTower(spec.sizes)
        self.net.eval().requires_grad_(requires_grad=False)

    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name and shape of its checkpoint tensors."""
        shapes = {}
        for name, tensor in self.net.state_dict().items():
            shapes[PREFIX + name] = tuple(tensor.shape)
            if tensor.ndim == 2:
                shapes[PREFIX + name + SCALE] = (tensor.shape[0], 1)
        return shapes

    def load_weights(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load all tensors of a checkpoint that the decoder does not expect."""
        shapes = self.weight_shapes()
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if found != shapes:
            wrong = sorted(dict(found.items() ^ shapes.items()))
            raise ModelError(
                f"{wrong[0]}: got shape {found.get(wrong[0])}; expected {shapes.get(wrong[0])}. "
                "Install the package again."
            )
        state = {}
        for name in self.net.state_dict():
            tensor = tensors[PREFIX + name].float()
            scale = tensors.get(PREFIX + name + SCALE)
            state[name] = tensor if scale is None else tensor * scale
        if not self.net.soft_tokens.gain.is_meta:
            self.net.load_state_dict(state)

    def encode(self, modality: str, inputs: Mapping[str, torch.Tensor]) -> EncodedItem:
        """Return one image encoded."""
        del modality  # it reads images only
        return EncodedItem(self.net(inputs["pixel_values"].float())[0].to(self._dtype))

    def rope_positions(
        self, token_ids: Sequence[int], items: Iterable[tuple[str, Mapping[str, torch.Tensor]]]
    ) -> RopePositions | None:
        """Return None: one position per token."""
        return None


def tower_tensors(net: LabelTower) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint: matrices as int8 with scales, others as bfloat16."""
    tensors = {}
    for name, tensor in net.state_dict().items():
        if tensor.ndim == 2:
            scale = tensor.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
            tensors[PREFIX + name] = (tensor / scale).round().to(torch.int8)
            tensors[PREFIX + name + SCALE] = scale.contiguous()
        else:
            tensors[PREFIX + name] = tensor.to(torch.bfloat16).contiguous()
    return tensors
