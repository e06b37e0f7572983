"""Bounds of one image: plain data, for the frontend and for the process that decodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 2**20
DEFAULT_MAX_BYTES: Final = 20 * MIB
DEFAULT_MAX_PIXELS: Final = 50_000_000
"""A photo of 48 megapixels fits; decoding one takes up to 11 bytes a pixel."""
WHITE: Final = (255, 255, 255)


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Bounds of one image, and how it becomes RGB."""

    max_bytes: int = DEFAULT_MAX_BYTES
    """Largest size of the encoded file, in bytes."""
    max_pixels: int = DEFAULT_MAX_PIXELS
    """Largest width times height."""
    background: tuple[int, int, int] = WHITE
    """Colour under transparent pixels."""
