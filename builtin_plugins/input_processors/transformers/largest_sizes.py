"""Bounds the images that a processor makes before it cuts them to its model's size.

A line of pixels is a small file. Processors that resize its shorter side to that of the model, or
pad it to a square, would make gigabytes of it.
"""

from __future__ import annotations

from typing import Any, Final

from transformers.image_utils import ChannelDimension

MAX_PIXELS: Final = 2**24
"""Largest area of a resized or padded image, unless the image itself is large."""
MAX_FACTOR: Final = 16
"""Largest area of a resized or padded image, as a multiple of the image's."""


def bound_sizes(image_processor: Any) -> None:
    """Let an image processor raise `ValueError` before it makes an image too large."""
    resize: Any = getattr(image_processor, "resize", None)
    pad: Any = getattr(image_processor, "pad_to_square", None)

    def bounded_resize(image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        is_last = kwargs.get("input_data_format") == ChannelDimension.LAST
        height, width = image.shape[:2] if is_last else image.shape[-2:]
        edge = size.get("shortest_edge")
        if edge and not size.get("longest_edge"):
            longest = edge * max(height, width) // min(height, width)
            check_area(edge, longest, height * width)
        return resize(image, size, *args, **kwargs)

    def bounded_pad(image: Any, *args: Any, **kwargs: Any) -> Any:
        height, width = image.shape[-2:]
        check_area(max(height, width), max(height, width), height * width)
        return pad(image, *args, **kwargs)

    if resize is not None:
        image_processor.resize = bounded_resize
    if pad is not None:
        image_processor.pad_to_square = bounded_pad


def check_area(height: int, width: int, num_pixels: int = 0) -> None:
    """Raise `ValueError` for an image that is too large to be made of one of `num_pixels`."""
    limit = max(MAX_PIXELS, MAX_FACTOR * num_pixels)
    if height * width > limit:
        raise ValueError(
            f"the model's processor makes {width} x {height} of it; expected at most {limit} "
            "pixels. Crop it"
        )
