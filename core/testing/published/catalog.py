"""All architectures with a published layout, and how their tiny checkpoints are made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from core.testing.draw import draw_weights
from core.testing.published.layout import Published
from core.testing.published.llama_like import LLAMA_LIKE
from core.testing.published.mixtures import MIXTURES
from core.testing.published.streams import STREAMS

PUBLISHED: Final[Mapping[str, Published]] = {**LLAMA_LIKE, **MIXTURES, **STREAMS}
"""Architecture to its layout."""


def reference(architecture: str, seed: int) -> Any:
    """Return the model of transformers that the checkpoint of this seed is written from."""
    model = PUBLISHED[architecture].make()
    draw_weights(model, seed)
    return model.eval()


def write_published(architecture: str, folder: Path, seed: int, dtype: torch.dtype) -> None:
    """Write config.json and weights, without a tokenizer."""
    model = reference(architecture, seed).to(dtype)
    PUBLISHED[architecture].write(architecture, model, folder)
