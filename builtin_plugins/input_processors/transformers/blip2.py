"""The prompts of BLIP-2: one image, then a start token and the text."""

from __future__ import annotations

from collections.abc import Sequence

from builtin_plugins.input_processors.contract import ProcessedItem
from builtin_plugins.input_processors.transformers.processor import TransformersProcessor
from core.api.serving import RenderedText


class Blip2Processor(TransformersProcessor):
    """Processes one image, and puts it before the text."""

    completes_prompts = True

    def expanded_text(self, prompt: RenderedText, items: Sequence[ProcessedItem]) -> RenderedText:
        """Return the prompt with the image's text for its placeholder, which may be left out."""
        text = self.text_after_image(prompt, items)
        placeholder = self.placeholders["image"]
        begin = f"{placeholder}{self._tokenizer.bos_token}"
        shift = len(begin) + len(text) - len(prompt)
        spans = [(first + shift, end + shift) for first, end in prompt.control_spans]
        own = [(0, len(placeholder)), (len(placeholder), len(begin))]
        whole = RenderedText(begin + text, [*own, *(s for s in spans if s[0] >= len(begin))])
        return super().expanded_text(whole, items)
