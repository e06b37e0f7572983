"""Ovis2: tokens that mark the grid of an image have embeddings of the tower, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def token_ids(config: Any) -> list[int]:
    """Return the tokens besides the placeholder that get embeddings of the tower."""
    return list(config.visual_indicator_token_ids)


def arrange(base: Any, output: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return an image's embeddings in the order of its tokens."""
    features = output.pooler_output
    marks = output.visual_indicator_features.to(features.dtype)
    ids = inputs["placeholder_ids"]
    rows: torch.Tensor = features.new_empty((len(ids), features.shape[-1]))
    rows[ids == base.config.image_token_id] = features.flatten(0, 1)
    for token, mark in zip(token_ids(base.config), marks, strict=True):
        rows[ids == token] = mark
    return rows
