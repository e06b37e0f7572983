"""Decodes an image to RGB, for the process of the input processor.

Any damage raises `InvalidRequest`. Messages never repeat Pillow's own: these may hold addresses
of objects in memory (CVE-2026-22778).
"""

from __future__ import annotations

import warnings
from io import BytesIO
from typing import Final

import numpy as np
from PIL import Image

from builtin_plugins.features.multimodal.media.checks import (
    check_image,
    check_pixels,
    too_large,
)
from builtin_plugins.features.multimodal.media.formats import image_format
from builtin_plugins.features.multimodal.media.limits import MediaLimits
from core.api import InvalidRequest

MAX_EXIF_BYTES: Final = 2**20
"""Largest EXIF block; cameras write up to 64 kB, and thumbnails are no part of the image."""
_ORIENTATION: Final = 0x0112
_TRANSPOSES: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The operation that makes an image upright, by its EXIF orientation."""


def decode_image(data: bytes, field: str, limits: MediaLimits) -> Image.Image:
    """Return the first frame as an upright RGB image. Raises `InvalidRequest` for `field`."""
    check_image(data, field, limits)
    kind = image_format(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata; the bounds are checked here
            image: Image.Image = Image.open(BytesIO(data), formats=[kind or ""])
            check_pixels(image.size, field, limits)
            image.load()  # before its EXIF: reading that of a PNG loads, and would hide damage
            check_pixels(image.size, field, limits)
            orientation = _orientation(image, field)
            rgb = as_rgb(image, limits.background)
            transpose = _TRANSPOSES.get(orientation)
            return rgb if transpose is None else rgb.transpose(transpose)
    except InvalidRequest:
        raise
    except Image.DecompressionBombError:
        raise InvalidRequest(field, too_large(limits)) from None
    except Exception:  # noqa: BLE001 - decoders raise anything on damaged files
        raise InvalidRequest(
            field, f"got a damaged or truncated {kind} file; expected a whole one. Send it again."
        ) from None


def _orientation(image: Image.Image, field: str) -> int:
    """Return the EXIF orientation; 1 without one, or for EXIF that cannot be read."""
    exif = image.info.get("exif")
    if isinstance(exif, bytes) and len(exif) > MAX_EXIF_BYTES:
        raise InvalidRequest(
            field,
            f"got {len(exif)} bytes of EXIF data; expected at most {MAX_EXIF_BYTES}. Remove them.",
        )
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - other programs show such images, too
        return 1
    return orientation if isinstance(orientation, int) else 1


def as_rgb(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Return an image as RGB: transparent pixels over `background`, 16 bits by their high byte."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        values = np.clip(np.asarray(image).astype(np.int32), 0, 2**16 - 1)
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    transparent = image.convert("RGBA")
    opaque = Image.new("RGB", image.size, background)
    opaque.paste(transparent, mask=transparent.getchannel("A"))
    return opaque
