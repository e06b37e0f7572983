"""Checks of an encoded image that need no decoder: format, file size, pixels by the header."""

from __future__ import annotations

from typing import Final

from builtin_plugins.features.multimodal.media.formats import describe, image_format, image_size
from builtin_plugins.features.multimodal.media.limits import MediaLimits
from core.api import InvalidRequest

MAX_JPEG_SCANS: Final = 100
"""Each scan passes over all pixels: a small file with thousands of them takes minutes."""
_JPEG_SCAN: Final = b"\xff\xda"


def check_image(data: bytes, field: str, limits: MediaLimits) -> int:
    """Check format, file size and pixels by the header; return the number of pixels.

    Raises `InvalidRequest`.
    """
    if len(data) > limits.max_bytes:
        raise InvalidRequest(
            field,
            f"got {len(data)} bytes; expected at most {limits.max_bytes} (--max-media-bytes). "
            "Send a smaller image.",
        )
    if image_format(data) is None:
        got = describe(data) if data else "an empty file"
        raise InvalidRequest(
            field, f"got {got}; expected an image as PNG, JPEG, WebP, GIF or BMP. Convert it."
        )
    size = image_size(data)
    if size is None:
        raise InvalidRequest(
            field, "got an image with a damaged header; expected a whole file. Send it again."
        )
    if data.count(_JPEG_SCAN) > MAX_JPEG_SCANS and image_format(data) == "JPEG":
        raise InvalidRequest(
            field,
            f"got a JPEG file of more than {MAX_JPEG_SCANS} scans; expected a photo with about 10. "
            "Save it again.",
        )
    return check_pixels(size, field, limits)


def check_pixels(size: tuple[int, int], field: str, limits: MediaLimits) -> int:
    """Return the number of pixels. Raises `InvalidRequest` for none, or too many."""
    width, height = size
    if width < 1 or height < 1:
        raise InvalidRequest(
            field, f"got an image of {width}x{height} pixels; expected at least 1x1. Replace it."
        )
    if width * height > limits.max_pixels:
        raise InvalidRequest(field, too_large(limits))
    return width * height


def too_large(limits: MediaLimits) -> str:
    """Return the error for an image with too many pixels."""
    return (
        f"got more pixels than an image may have; expected at most {limits.max_pixels} "
        "(--max-media-pixels). Scale it down."
    )
