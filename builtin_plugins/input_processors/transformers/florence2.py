"""The prompts of Florence-2: a task, which is completed as the model was trained."""

from __future__ import annotations

from collections.abc import Sequence

from builtin_plugins.input_processors.contract import ProcessedItem
from builtin_plugins.input_processors.transformers.processor import TransformersProcessor
from core.api import InvalidRequest
from core.api.serving import RenderedText


class Florence2Processor(TransformersProcessor):
    """Processes one image, and makes a prompt of a task such as <CAPTION>."""

    completes_prompts = True

    def expanded_text(self, prompt: RenderedText, items: Sequence[ProcessedItem]) -> RenderedText:
        """Return the prompt with the image's text for its placeholder.

        A prompt without a placeholder is a task.
        """
        placeholder = self.placeholders["image"]
        if placeholder in str(prompt):
            return super().expanded_text(prompt, items)
        try:
            (text,) = self._processor._construct_prompts(str(prompt))
        except ValueError as error:
            raise InvalidRequest("prompt", f"got {prompt!s:.80}: {error}") from error
        begin = f"{placeholder}{self._tokenizer.bos_token}"
        whole = f"{begin}{text}{self._tokenizer.eos_token}"
        spans = [(0, len(placeholder)), (len(placeholder), len(begin))]
        end = len(begin) + len(text)
        return super().expanded_text(RenderedText(whole, [*spans, (end, len(whole))]), items)
