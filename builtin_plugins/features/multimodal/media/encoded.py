"""Media inside a request: base64 text and data: URLs, bounded before they are decoded."""

from __future__ import annotations

import binascii
import re
from typing import Final

from core.api import InvalidRequest

_DATA_URL: Final = re.compile(
    r"data:(?P<type>[^;,]{0,100})"
    r"(?P<params>(?:;[^;,]{0,100}){0,8}),",
    re.IGNORECASE,
)
_SPACE: Final = re.compile(r"[\t\n\r ]+")
_ESCAPES: Final = {"%2B": "+", "%2F": "/", "%3D": "=", "%0A": "", "%0D": "", "%20": ""}
"""Characters of base64 text as URLs write them."""


def read_data_url(url: str, field: str, max_bytes: int, kind: str = "image") -> bytes:
    """Return the content of a base64 data: URL of this kind. Raises `InvalidRequest`.

    Spellings that browsers read are accepted: escapes, spaces, base64 without its padding.
    """
    found = _DATA_URL.match(url)
    params = [] if found is None else [each.strip() for each in found["params"].lower().split(";")]
    if found is None or "base64" not in params:
        raise InvalidRequest(
            field,
            f"got {url[:40]!r}; expected data:{kind}/png;base64, and the file in base64. "
            "Encode it.",
        )
    media_type = found["type"].strip().lower()
    if media_type not in ("", "application/octet-stream") and not media_type.startswith(f"{kind}/"):
        raise InvalidRequest(
            field,
            f"got a data: URL of type {media_type!r}; expected {kind}/png or similar. Convert it.",
        )
    start = found.end()
    if url.find("%", start) >= 0:
        return read_base64(_unescaped(url[start:]), field, max_bytes)
    return read_base64(url, field, max_bytes, start=start)


def _unescaped(text: str) -> str:
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character).replace(escape.lower(), character)
    return text


def read_base64(text: str, field: str, max_bytes: int, start: int = 0) -> bytes:
    """Return the bytes of a base64 text from `start` on. Raises `InvalidRequest`."""
    if (len(text) - start) // 4 * 3 > max_bytes + 2:
        raise InvalidRequest(
            field,
            f"got about {(len(text) - start) // 4 * 3} bytes; expected at most {max_bytes} "
            "(--max-media-bytes). Send a smaller image.",
        )
    try:
        encoded = text[start:].encode("ascii")
        if _SPACE.search(text, start):
            encoded = b"".join(encoded.split())
        if len(encoded) % 4 in (2, 3) and not encoded.endswith(b"="):
            encoded += b"=" * (-len(encoded) % 4)
        return binascii.a2b_base64(encoded, strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise InvalidRequest(
            field, "got a text that is not base64; expected the file in base64. Encode it."
        ) from None
