"""Joins the pages of several metric sinks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_TEXT: Final = "text/plain"
_FAMILY: Final = re.compile(rb"^# TYPE (\S+)", re.MULTILINE)


def merge_pages(sinks: Sequence[Any], health: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the pages of the sinks, in order, as one page with its content type.

    The page is text if any sink's page is. A comment names each sink that is left out: it raised,
    has another content type, or repeats a metric, which scrapers reject. If all sinks raise, so
    does this function.
    """
    pages: list[tuple[Any, bytes, str]] = []
    failed: list[tuple[Any, Exception]] = []
    for entry in sinks:
        try:
            pages.append((entry, *entry.sink.expose(health)))
        except Exception as error:  # noqa: BLE001 - counted and named; others stay
            entry.failed("expose", error)
            failed.append((entry, error))
    if not pages:
        raise failed[0][1]
    kind = next((kind for _, _, kind in pages if _format(kind) == _TEXT), "")
    if not kind:
        return pages[0][1:]  # unknown formats cannot be extended, not even by a comment
    known: set[bytes] = set()
    page = b""
    for entry, part, own in pages:
        families = set(_FAMILY.findall(part))
        if _format(own) != _TEXT:
            page += _omission(entry, f"its content type is {own}")
        elif families & known:
            page += _omission(
                entry, f"another sink has {min(families & known).decode(errors='replace')}"
            )
        else:
            known |= families
            page += part if part.endswith(b"\n") or len(pages) == 1 else part + b"\n"
    page += b"".join(_omission(entry, "it failed; see the log") for entry, _ in failed)
    return page, kind


def _format(kind: str) -> str:
    return kind.partition(";")[0].strip().lower()


def _omission(entry: Any, why: str) -> bytes:
    return f"# metric sink {entry.name!r} is left out: {why}\n".encode()
