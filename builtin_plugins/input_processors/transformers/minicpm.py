"""The processors of MiniCPM-V without their video part, and with images counted in a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from transformers import MiniCPMV4_6Processor, ProcessorMixin

TOKENS: Final = (
    *("image_token", "image_token_id", "image_start_token", "image_end_token"),
    *("slice_start_token", "slice_end_token", "image_id_start_token", "image_id_end_token"),
)
"""Attributes of the tokenizer that the text of an image is made of."""


class MiniCPMProcessor(MiniCPMV4_6Processor):
    """An image as a whole, then its slices, each between tokens of its own."""

    fixed_kwargs: Final = frozenset(("downsample_mode", "use_image_id"))
    """Settings of the checkpoint that no request may change."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: str | None = None,
        **_: Any,
    ) -> None:
        setup: Any = ProcessorMixin.__init__
        setup(self, image_processor, tokenizer, chat_template=chat_template)
        self.slice_mode = image_processor.slice_mode
        self.default_use_image_id = image_processor.use_image_id
        for name in TOKENS:
            setattr(self, name, getattr(tokenizer, name))

    def numbered(self, texts: Sequence[str]) -> list[str]:
        """Return the texts of a prompt's images, each after its number."""
        if not self.default_use_image_id:
            return list(texts)
        number: Any = self._prepend_local_ids
        numbered: list[str] = number([self.image_token * len(texts)], texts, self.image_token)
        return numbered


class MiniCPMCanvasProcessor(MiniCPMProcessor):
    """The processor of MiniCPM-V 4.7, which has positions on a canvas."""

    return_mm_token_type_ids = True
