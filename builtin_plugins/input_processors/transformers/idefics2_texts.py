"""The text of one image of Idefics2; transformers has that of a whole prompt only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers


class Idefics2ImageTexts(transformers.Idefics2Processor):
    """transformers' processor, with the text of one image."""

    def replace_image_token(self, image_inputs: Mapping[str, Any], image_idx: int, **_: Any) -> str:
        """Return the text of an image: its parts, with a token before, between and after them."""
        edge = self.fake_image_token
        part = f"{self.image_token * self.image_seq_len}{edge}"
        return f"{edge}{part * image_inputs['pixel_values'].shape[1]}"
