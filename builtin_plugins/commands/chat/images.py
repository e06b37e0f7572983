"""Images that the user adds to a message of a chat."""

from __future__ import annotations

import base64
import mimetypes
from pathlib import Path
from typing import Any, Final

from core.api import EngineError

MAX_BYTES: Final = 1 << 26


class Attachments:
    """Images of the next message."""

    def __init__(self) -> None:
        self._urls: list[str] = []

    def add(self, path: str) -> None:
        """Add an image by its path, or by its URL. Raises `EngineError`."""
        path = path.strip()
        if path.startswith(("http://", "https://", "data:")):
            self._urls.append(path)
            return
        file = Path(path.strip("'\"")).expanduser()  # terminals quote dropped files
        kind = mimetypes.guess_type(file.name)[0] or ""
        if not kind.startswith("image/"):
            raise EngineError(f"{file} is not named like an image. Give a file such as a.png.")
        try:
            if file.stat().st_size > MAX_BYTES:
                raise EngineError(f"{file} is larger than {MAX_BYTES} bytes. Scale it down.")
            encoded = base64.b64encode(file.read_bytes()).decode()
        except OSError as error:
            raise EngineError(f"{file} cannot be read: {error.strerror or error}.") from error
        self._urls.append(f"data:{kind};base64,{encoded}")

    def content_with(self, message: str) -> str | list[dict[str, Any]]:
        """Return the content of a message with the added images, which are then used up."""
        if not self._urls:
            return message
        images = [{"type": "image_url", "image_url": {"url": url}} for url in self._urls]
        self._urls.clear()
        return [*images, {"type": "text", "text": message}]
