"""Molmo 2: image features are added to the embeddings of tokens, which all see each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from builtin_plugins.models.vision.image_text import TextPart
from core.model_spec.tower import LookAhead


def all_items(config: Any) -> LookAhead:
    """Return that the tokens of all images of a prompt do."""
    del config
    return "all_items"


def token_ids(config: Any) -> list[int]:
    """Return the tokens that enclose the crops of an image."""
    start = config.image_start_token_id
    return [start, config.low_res_image_start_token_id, config.image_end_token_id]


def vocab_size(config: Any) -> int:
    """Return the number of tokens of prompts; the head writes fewer."""
    text = config.get_text_config()
    return int(text.vocab_size + text.additional_vocab_size)


def keep_embeddings(model: Any) -> None:
    """Let the tower's part read the embeddings of tokens."""
    # A list, so that they are no modules of the tower.
    model.text_embeddings = [model.language_model.embed_tokens]


def arrange(base: Any, output: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the embeddings of an image's tokens, with its features added to those of patches."""
    ids = inputs["placeholder_ids"]
    rows: torch.Tensor = base.text_embeddings[0](ids)
    rows[ids == base.config.image_patch_id] += torch.cat(output.pooler_output).to(rows.dtype)
    return rows


TEXT: Final = TextPart(prepare=keep_embeddings, vocab_size=vocab_size)
