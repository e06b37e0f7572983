"""The largest item that a model's input processor makes of an allowed image."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any, Final

from PIL import Image

from builtin_plugins.input_processors.api import InputProcessor, ProcessedItem

SHAPES: Final = ((1, 1), (4, 3), (3, 4))
"""Width to height of the images that are tried: some processors cut an image into tiles, and a
grid of 4 x 3 tiles is often the largest.
"""


def largest_item(
    processor: InputProcessor, max_pixels: int, kwargs: Mapping[str, Any]
) -> ProcessedItem:
    """Return the largest item, in tokens, of blank images of up to `max_pixels`."""
    items = []
    for width, height in SHAPES:
        scale = isqrt(max_pixels // (width * height))
        image = Image.new("RGB", (max(1, width * scale), max(1, height * scale)))
        items.append(processor.process("image", image, kwargs))
    return max(items, key=_size)


def _size(item: ProcessedItem) -> tuple[int, int]:
    return item.num_tokens, sum(tensor.nbytes for tensor in item.tensors.values())
