"""The prompts of Fuyu: one image before the text, and a token that begins the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from builtin_plugins.input_processors.contract import ProcessedItem
from builtin_plugins.input_processors.transformers.processor import TransformersProcessor
from core.api import EngineConfig, InvalidRequest
from core.api.models import ModelSource
from core.api.serving import RenderedText

BEGIN_ANSWER: Final = "<0x04>"


class FuyuProcessor(TransformersProcessor):
    """Processes one image; its tokens and those of the text are tokenized apart."""

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        super().__init__(source, config)
        own = self._processor
        self._image_token_ids = {own.image_token_id}
        self._controls: Final = {"<s>", own.image_newline_token, BEGIN_ANSWER}

    def process(self, modality: str, content: Any, kwargs: Mapping[str, Any]) -> ProcessedItem:
        """Return one image processed."""
        found = super().process(modality, content, kwargs)
        return replace(found, tensors={"pixel_values": found.tensors["image_patches"]})

    def expand(self, prompt: RenderedText, items: Sequence[ProcessedItem]) -> list[int]:
        """Return the tokens of the image, of the text, and the one that begins the answer."""
        text = self.text_after_image(prompt, items)
        # Pieces of the vocabulary, which the tokenizer finds in any text.
        for control in sorted(self._controls.union(self._special.findall(text))):
            if control in text:
                raise InvalidRequest(
                    "prompt", f"got the token {control!r} after an image; expected text. Remove it."
                )
        answer = self._tokenizer.encode(f"{text}{BEGIN_ANSWER}", add_special_tokens=False)
        return [*self._ids_of(items[0].text), *answer]

    def _ids_of(self, text: str) -> list[int]:
        """Return the tokens of an image, without the space that the tokenizer puts before them."""
        return super()._ids_of(text)[1:]
