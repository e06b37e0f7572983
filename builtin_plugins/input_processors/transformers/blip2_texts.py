"""The text of one image of BLIP-2; transformers has that of a whole prompt only."""

from __future__ import annotations

from typing import Any

import transformers


class Blip2ImageTexts(transformers.Blip2Processor):
    """transformers' processor, with the text of one image."""

    def __init__(self, image_processor: Any, tokenizer: Any, num_query_tokens: int = 32) -> None:
        make: Any = super().__init__  # transformers states no types
        make(image_processor, tokenizer, num_query_tokens)
        self.image_token: Any = str(self.image_token)
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        """Return the text of an image: a placeholder for each query."""
        text: str = self.image_token * self.num_query_tokens
        return text
