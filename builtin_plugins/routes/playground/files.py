"""The files of the page, compressed, with the headers that let it load only these."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

PAGE: Final = Path(__file__).parent / "page"
TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
"""Content types by suffix; other files, such as licences, are not served."""
COMPRESSED: Final = frozenset({".png", ".woff2"})
"""Suffixes of files that are compressed as they are."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}
"""Headers that let the page load and run only its own files, whatever a model writes."""


class PageFile:
    """One file of the page, read and compressed when a browser first loads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content_type = TYPES[path.suffix]

    @cached_property
    def _content(self) -> bytes:
        return self.path.read_bytes()

    @cached_property
    def _gzipped(self) -> bytes:
        return gzip.compress(self._content, 9, mtime=0)

    @cached_property
    def _etag(self) -> str:
        return f'"{hashlib.sha256(self._content).hexdigest()[:32]}"'

    def answer(self, request: Request) -> Response:
        """Return the file, compressed if the browser accepts that; 304 if it has the file."""
        headers = {**HEADERS, "ETag": self._etag, "Content-Type": self.content_type}
        if request.headers.get("if-none-match", "").removeprefix("W/") == self._etag:
            return Response(status_code=304, headers=headers)
        if self.path.suffix in COMPRESSED or not _accepts_gzip(request):
            return Response(self._content, headers=headers)
        return Response(self._gzipped, headers={**headers, "Content-Encoding": "gzip"})


def _accepts_gzip(request: Request) -> bool:
    accepted = request.headers.get("accept-encoding", "").lower().split(",")
    return any(each.partition(";")[0].strip() == "gzip" for each in accepted)


def page_files() -> dict[str, PageFile]:
    """Return the files of the page by the path that serves them."""
    found = {
        f"/playground/{path.relative_to(PAGE).as_posix()}": PageFile(path)
        for path in sorted(PAGE.rglob("*"))
        if path.suffix in TYPES
    }
    found["/playground"] = found.pop("/playground/index.html")
    return found
