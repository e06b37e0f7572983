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


def read_data_url(url: str, field: str, max_bytes: int, kind: str = "image") -> bytes:
    """Return the content of a base64 data: URL of this kind. Raises `InvalidRequest`."""
    found = _DATA_URL.match(url)
    params = [] if found is None else found["params"].lower().split(";")
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
    return read_base64(url, field, max_bytes, start=found.end())


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
        return binascii.a2b_base64(encoded, strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise InvalidRequest(
            field, "got a text that is not base64; expected the file in base64. Encode it."
        ) from None
