"""The prompts of PaliGemma: a start token follows the images, and a line break ends the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from builtin_plugins.input_processors.contract import ProcessedItem
from builtin_plugins.input_processors.transformers.processor import TransformersProcessor
from core.api.serving import RenderedText


class PaliGemmaProcessor(TransformersProcessor):
    """Processes images, and completes a prompt as the model was trained."""

    def expanded_text(self, prompt: RenderedText, items: Sequence[ProcessedItem]) -> RenderedText:
        """Return the prompt with each item's text for its placeholder."""
        expanded = super().expanded_text(prompt, self._with_start(items))
        return RenderedText(f"{expanded}\n", expanded.control_spans)

    def expand_ids(self, token_ids: Sequence[int], items: Sequence[ProcessedItem]) -> list[int]:
        """Return token ids with each item's tokens for its placeholder."""
        end = self._tokenizer.encode("\n", add_special_tokens=False)
        return [*super().expand_ids(token_ids, self._with_start(items)), *end]

    def _with_start(self, items: Sequence[ProcessedItem]) -> list[ProcessedItem]:
        """Return the items; the start token is part of the last one's text."""
        last = items[-1]
        return [*items[:-1], replace(last, text=f"{last.text}{self._tokenizer.bos_token}")]
