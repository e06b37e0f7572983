"""Format and size of an image file, from its first bytes.

Without Pillow: the API process refuses what no decoder may see, and what would be too large.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Final

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Accepted formats, by Pillow's names. Other decoders never run."""
MAX_JPEG_SEGMENTS: Final = 4096
"""Segments before the size; photos have up to some hundred."""
_NO_FILL_BYTE: Final = re.compile(rb"[^\xff]")
"""A marker after bytes that fill up."""
_JPEG_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""Markers of JPEG segments with the size of the image."""
_JPEG_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD8)})
"""Markers of JPEG segments without a length."""
_OTHERS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"II*\0", "a TIFF file"),
    (b"MM\0*", "a TIFF file"),
    (b"%PDF", "a PDF file"),
    (b"PK\3\4", "a ZIP file"),
    (b"\x1f\x8b", "a gzip file"),
    (b"8BPS", "a Photoshop file"),
    (b"\0\0\1\0", "an icon file"),
    (b"%!PS", "a PostScript file"),
    (b"RIFF", "a RIFF file that is no WebP"),
    (b"OggS", "an Ogg file"),
    (b"\x1aE\xdf\xa3", "a Matroska file"),
    (b"ID3", "an MP3 file"),
    (b"\x80\4", "a pickle"),
)
"""First bytes of other files that clients send."""


def image_format(data: bytes) -> str | None:
    """Return the format of an encoded image, one of `FORMATS`; None for any other file."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "GIF"
    return "BMP" if data.startswith(b"BM") else None


def describe(data: bytes) -> str:
    """Return what a file with another format is, for the error message."""
    for start, name in _OTHERS:
        if data.startswith(start):
            return name
    if data[4:8] == b"ftyp":
        return "an MP4, AVIF or HEIC file"
    head = data[:512].lstrip().lower()
    if b"<svg" in head:
        return "an SVG file"
    return "a page of HTML or XML" if head.startswith(b"<") else "a file of another format"


def image_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height as the header gives them; None for a damaged header."""
    kind = image_format(data)
    try:
        return None if kind is None else _SIZES[kind](data)
    except (struct.error, IndexError):
        return None


def _png_size(data: bytes) -> tuple[int, int] | None:
    if data[12:16] != b"IHDR":
        return None
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _gif_size(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _bmp_size(data: bytes) -> tuple[int, int]:
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return width, abs(height)  # a negative height: rows from top to bottom


def _webp_size(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X":
        width = int.from_bytes(data[24:27], "little") + 1
        height = int.from_bytes(data[27:30], "little") + 1
        return (width, height) if len(data) >= 30 else None
    if kind == b"VP8L" and data[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    position = 2
    for _ in range(MAX_JPEG_SEGMENTS):
        start = data.find(b"\xff", position)
        found = None if start < 0 else _NO_FILL_BYTE.search(data, start)
        if found is None:
            return None
        marker = found[0][0]
        position = found.end()
        if marker == 0 or marker in _JPEG_ALONE:
            continue
        (length,) = struct.unpack_from(">H", data, position)
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, position + 3)
            return width, height
        if length < 2 or marker == 0xDA:  # the pixels start without a frame
            return None
        position += length
    return None


_SIZES: Final[Mapping[str, Callable[[bytes], tuple[int, int] | None]]] = {
    "PNG": _png_size,
    "JPEG": _jpeg_size,
    "WEBP": _webp_size,
    "GIF": _gif_size,
    "BMP": _bmp_size,
}
