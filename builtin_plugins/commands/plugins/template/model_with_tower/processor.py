"""The input processor: an image becomes the mean colours of its quarters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image

from builtin_plugins.input_processors.api import (
    InputProcessor,
    ProcessedItem,
    expand_ids,
    expand_text,
)
from core.api import EngineConfig
from core.api.models import ModelSource
from core.api.serving import RenderedText

IMAGE = "<image>"
EXAMPLES = [
    (
        ModelSource("acme", "AcmeForCausalLM", SimpleNamespace(image_token_id=257)),
        [Image.new("RGB", (40, 30), "red"), Image.new("RGB", (2, 2), "blue")],
    )
]
"""A model, and images."""


class AcmeProcessor(InputProcessor):
    """Every image has four placeholder tokens."""

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        self.identity = "acme 1"
        """Part of every content hash: change it when tensors change."""
        self.placeholders = {"image": IMAGE}
        self._token_id = source.hf_config.image_token_id

    def process(self, modality: str, content: Any, kwargs: Mapping[str, Any]) -> ProcessedItem:
        """Return an image as four mean colours."""
        pixels = np.asarray(content, dtype=np.float32) / 255
        rows, columns = (size // 2 for size in pixels.shape[:2])
        quarters = [
            pixels[top : top + rows, left : left + columns].mean(axis=(0, 1))
            for top in (0, rows)
            for left in (0, columns)
        ]
        colours = torch.from_numpy(np.stack(quarters))
        return ProcessedItem(modality, IMAGE * 4, 4, {"colours": colours})

    def expand(self, prompt: RenderedText, items: Sequence[ProcessedItem]) -> RenderedText:
        """Return the prompt with four placeholders for each image."""
        return expand_text(prompt, items, self.placeholders, re.compile(IMAGE))

    def expand_ids(self, token_ids: Sequence[int], items: Sequence[ProcessedItem]) -> list[int]:
        """Return token ids with four placeholder tokens for each image."""
        four = [self._token_id] * 4
        return expand_ids(token_ids, [(item, four) for item in items], {"image": self._token_id})
