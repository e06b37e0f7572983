"""The processor of Pixtral and Mistral 3 without torchvision.

transformers imports its own with a function of torchvision, which it does not need here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import ProcessorMixin


class PixtralProcessor(ProcessorMixin):
    """An image as lines of placeholders; a token ends each line, and another one the last."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        patch_size: int = 16,
        spatial_merge_size: int = 1,
        chat_template: str | None = None,
        image_token: str = "[IMG]",
        image_break_token: str = "[IMG_BREAK]",
        image_end_token: str = "[IMG_END]",
        **_: Any,
    ) -> None:
        setup: Any = super().__init__
        setup(image_processor, tokenizer, chat_template=chat_template)
        self.patch_size = patch_size
        self.spatial_merge_size = spatial_merge_size
        self.image_token = image_token
        self.image_break_token = image_break_token
        self.image_end_token = image_end_token
        self.image_token_id = tokenizer.convert_tokens_to_ids(image_token)

    def _process_images(self, images: Any, **kwargs: Any) -> tuple[Any, list[str]]:
        """Return processed images with sizes that are whole numbers of merged patches."""
        kwargs["patch_size"] = self.patch_size * self.spatial_merge_size
        processed, texts = super()._process_images(images, **kwargs)
        return processed, texts

    def replace_image_token(self, image_inputs: Mapping[str, Any], image_idx: int, **_: Any) -> str:
        """Return the text of an image."""
        side = self.patch_size * self.spatial_merge_size
        height, width = (int(length) // side for length in image_inputs["image_sizes"][image_idx])
        line = self.image_token * width
        return self.image_break_token.join([line] * height) + self.image_end_token
