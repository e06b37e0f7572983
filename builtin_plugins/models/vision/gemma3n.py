"""Gemma 3n: embeddings for each layer, and ids beyond the text's that the towers' parts embed."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from builtin_plugins.models.vision.image_text import TextPart
from core.api.models import ForwardBatch


class SharedVocabulary(nn.Module):
    """Embeds ids of the text, and those from the offsets of the parts for images and audio."""

    def __init__(self, text: nn.Module, others: list[Any]) -> None:
        super().__init__()
        self._text = text
        self._others = others
        """Embedders, by ascending offset; a list, so that they are no modules of this one."""

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return embeddings [..., hidden]."""
        found: torch.Tensor = self._text(token_ids)
        for embedder in self._others:
            last = embedder.vocab_offset + embedder.vocab_size - 1
            own = token_ids >= embedder.vocab_offset
            embedded = embedder(input_ids=torch.where(own, token_ids, last).clamp(max=last))
            found = torch.where(own.unsqueeze(-1), embedded.to(found), found)
        return found


def share_vocabulary(model: Any) -> None:
    """Let the text part embed all ids, as the whole model does."""
    text = model.language_model
    others = [model.embed_vision, model.embed_audio]
    text.embed_tokens = SharedVocabulary(text.embed_tokens, others)


def layer_inputs(config: Any, model: Any, batch: ForwardBatch) -> dict[str, torch.Tensor]:
    """Return the embeddings of each layer; the model itself computes them only of ids."""
    del config
    if batch.embeddings is None:
        return {}
    return {"per_layer_inputs": model.get_per_layer_inputs(batch.input_ids)}


TEXT: Final = TextPart(inputs=layer_inputs, prepare=share_vocabulary)
