"""Llama 4: the projector is no part of what transformers calls its image features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def arrange(base: Any, output: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the projected embeddings of an image's tiles."""
    projected: torch.Tensor = base.multi_modal_projector(output.last_hidden_state.flatten(0, 1))
    return projected
