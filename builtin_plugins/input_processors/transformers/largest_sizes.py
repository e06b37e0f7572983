"""Bounds the images that a processor makes before it cuts them to its model's size.

A line of pixels is a small file. Processors that resize its shorter side to that of the model, or
pad it to a square, would make gigabytes of it.
"""

from __future__ import annotations

from typing import Any, Final

from transformers.image_utils import ChannelDimension

MAX_PIXELS: Final = 2**26
"""Largest area of a resized or padded image."""


def bound_sizes(image_processor: Any) -> None:
    """Let an image processor raise `ValueError` before it makes an image of over `MAX_PIXELS`."""
    resize = getattr(image_processor, "resize", None)
    pad = getattr(image_processor, "pad_to_square", None)

    def bounded_resize(image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        is_last = kwargs.get("input_data_format") == ChannelDimension.LAST
        height, width = image.shape[:2] if is_last else image.shape[-2:]
        edge = size.get("shortest_edge")
        if edge and not size.get("longest_edge"):
            check_area(edge, edge * max(height, width) // min(height, width))
        return resize(image, size, *args, **kwargs)

    def bounded_pad(image: Any, *args: Any, **kwargs: Any) -> Any:
        side = max(image.shape[-2:])
        check_area(side, side)
        return pad(image, *args, **kwargs)

    if resize is not None:
        image_processor.resize = bounded_resize
    if pad is not None:
        image_processor.pad_to_square = bounded_pad


def check_area(height: int, width: int) -> None:
    """Raise `ValueError` for an image of over `MAX_PIXELS` that a processor would make."""
    if height * width > MAX_PIXELS:
        raise ValueError(
            f"the model's processor makes {width} x {height} of it; expected at most {MAX_PIXELS} "
            "pixels. Crop it"
        )
