"""One page of metrics from several sinks.

What cannot be on it is named on it. Knows the text format, no HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_TEXT: Final = "text/plain"
_FAMILY: Final = re.compile(rb"^# TYPE (\S+)", re.MULTILINE)


def joined(shown: Sequence[Any], health: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return what the sinks expose, in their order, as one page with its content type: text, where
    one gives text.

    Left out, and named in a comment, is a sink that raises, has another content type, or a metric
    that is there already: scrapers refuse a page that names one twice. Raises what the first sink
    raises when all do.
    """
    pages: list[tuple[Any, bytes, str]] = []
    failed: list[tuple[Any, Exception]] = []
    for guarded in shown:
        try:
            pages.append((guarded, *guarded.sink.expose(health)))
        except Exception as error:  # noqa: BLE001 - a side effect: counted and named, it hides nobody else's numbers
            guarded.failed("expose", error)
            failed.append((guarded, error))
    if not pages:
        raise failed[0][1]
    kind = next((kind for _, _, kind in pages if _format(kind) == _TEXT), "")
    if not kind:
        return pages[0][1:]  # a format that is not ours to add to, not even a comment
    known: set[bytes] = set()
    page = b""
    for guarded, part, own in pages:
        families = set(_FAMILY.findall(part))
        if _format(own) != _TEXT:
            page += _left_out(guarded, f"its content type is {own}")
        elif families & known:
            page += _left_out(
                guarded, f"another sink has {min(families & known).decode(errors='replace')}"
            )
        else:
            known |= families
            page += part if part.endswith(b"\n") or len(pages) == 1 else part + b"\n"
    return page + b"".join(
        _left_out(guarded, "it failed; the log says more") for guarded, _ in failed
    ), kind


def _format(kind: str) -> str:
    return kind.partition(";")[0].strip().lower()


def _left_out(guarded: Any, why: str) -> bytes:
    return f"# metric sink {guarded.name!r} is left out: {why}\n".encode()
