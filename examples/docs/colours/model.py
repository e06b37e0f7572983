"""The decoder, the tower and the input processor."""

import re
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image
from torch import nn

from builtin_plugins.input_processors.api import (
    InputProcessor,
    ProcessedItem,
    expand_ids,
    expand_text,
)
from core.api import ModelError
from core.api.models import ModelSource
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.tower import EncodedItem, TowerFacts

IMAGE = "<image>"


class ColourTower(nn.Module):
    """Embeds the mean colours of an image's quarters."""

    def __init__(self, spec, context):
        super().__init__()
        self.facts = spec.facts
        self.project = nn.Linear(
            3, spec.hidden_size, bias=False, device=context.device, dtype=context.dtype
        ).requires_grad_(False)

    def weight_shapes(self):
        return {"vision.project.weight": tuple(self.project.weight.shape)}

    def load_weights(self, tensors):
        expected = self.weight_shapes()
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if found != expected:
            name = min(found.items() ^ expected.items())[0]
            raise ModelError(
                f"{name}: got shape {found.get(name)}; expected {expected.get(name)}. Restore the "
                "original files."
            )
        self.project.weight.copy_(tensors["vision.project.weight"])

    def encode(self, modality, inputs):
        return EncodedItem(self.project(inputs["colours"].to(self.project.weight.dtype)))

    def rope_positions(self, token_ids, items):
        return None  # one position for each token


@dataclass(frozen=True)
class ColourTowerSpec:
    facts: TowerFacts
    hidden_size: int

    def build(self, context):
        return ColourTower(self, context)


def spec(hf_config):
    """Return a Llama decoder with the tower."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    layer = LayerSpec(attention=facts.attention(), mlp=facts.mlp(), attention_in=norm, mlp_in=norm)
    tower = ColourTowerSpec(
        TowerFacts({"image": facts.count("image_token_id")}), facts.count("hidden_size")
    )
    layers = (layer,) * facts.num_layers()
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, tower=tower)


class ColourProcessor(InputProcessor):
    """Every image has four placeholder tokens."""

    identity = "colours 1"  # part of every content hash: change it when tensors change
    placeholders = {"image": IMAGE}

    def __init__(self, source, config):
        self.token_id = source.hf_config.image_token_id

    def process(self, modality, content, kwargs):
        pixels = np.asarray(content, dtype=np.float32) / 255
        rows, columns = (size // 2 for size in pixels.shape[:2])
        quarters = [
            pixels[top : top + rows, left : left + columns].mean(axis=(0, 1))
            for top in (0, rows)
            for left in (0, columns)
        ]
        return ProcessedItem(modality, IMAGE * 4, 4, {"colours": torch.tensor(np.stack(quarters))})

    def expand(self, prompt, items):
        return expand_text(prompt, items, self.placeholders, re.compile(IMAGE))

    def expand_ids(self, token_ids, items):
        four = [self.token_id] * 4
        return expand_ids(token_ids, [(item, four) for item in items], {"image": self.token_id})


EXAMPLE_CONFIG = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "image_token_id": 257,
}
ORACLE = "LlamaForCausalLM"
EXAMPLE_ITEM = ("image", 4, {"colours": torch.rand(4, 3)})
EXAMPLES = [
    (
        ModelSource("colours", "ColoursForCausalLM", SimpleNamespace(image_token_id=257)),
        [Image.new("RGB", (40, 30), "red"), Image.new("RGB", (2, 2), "blue")],
    )
]
