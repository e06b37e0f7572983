"""The prompts of Chameleon: they end with a separator."""

from __future__ import annotations

from collections.abc import Sequence

from builtin_plugins.input_processors.contract import ProcessedItem
from builtin_plugins.input_processors.transformers.processor import TransformersProcessor
from core.api import EngineConfig
from core.api.models import ModelSource
from core.api.serving import RenderedText


class ChameleonProcessor(TransformersProcessor):
    """Appends the separator of a conversation's turn, as transformers does."""

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        super().__init__(source, config)
        self._image_token_ids = {self._processor.image_token_id}

    def expanded_text(self, prompt: RenderedText, items: Sequence[ProcessedItem]) -> RenderedText:
        """Return the prompt with each item's text for its placeholder, and the separator."""
        expanded = super().expanded_text(prompt, items)
        text = f"{expanded}{self._tokenizer.sep_token}"
        return RenderedText(text, [*expanded.control_spans, (len(expanded), len(text))])
