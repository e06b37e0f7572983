"""Mutations of model outputs: each marker dropped, doubled, cut, or surrounded by text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from builtin_plugins.output_parsers.api import ReasoningFormat, ToolFormat
from builtin_plugins.output_parsers.testing import Parsed

_WORDS = re.compile(r"[A-Za-z]{3,}")
BOM = "\ufeff"
BETWEEN = "meanwhile"
OUTSIDE = "Well"
PUT_IN = (BETWEEN, OUTSIDE)


def markers_of(*forms: ToolFormat | ReasoningFormat | None) -> list[str]:
    """Return the markers of formats, longest first."""
    found: set[str] = set()
    for form in forms:
        if form is not None:
            found |= {
                *form.markers,
                *(form.call_ends if isinstance(form, ToolFormat) else form.starts + form.ends),
            }
    return sorted(found - {""}, key=lambda text: (-len(text), text))


def variations(text: str, markers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a description and the mutated text."""
    for outer in (BOM, " ", "\n\n", f"{OUTSIDE}, "):
        yield f"{outer!r} before", outer + text
        yield f"{outer!r} after", text + outer
    yield "line ends of Windows", text.replace("\n", "\r\n")
    if not markers:
        return
    for found in re.finditer("|".join(map(re.escape, markers)), text):
        before = text[: found.start()]
        marker = found[0]
        after = text[found.end() :]
        for what, instead in (
            ("dropped", ""),
            ("doubled", marker * 2),
            ("start cut", marker[len(marker) // 2 :]),
            ("end cut", marker[: len(marker) // 2]),
            ("between spaces", f" {marker} "),
            ("between lines", f"\n{marker}\n"),
            ("after text", f" {BETWEEN} {marker}"),
            ("before text", f"{marker} {BETWEEN} "),
        ):
            yield f"{marker!r} at {found.start()} {what}", before + instead + after
        yield f"cut off in {marker!r} at {found.start()}", before + marker[: len(marker) // 2]


def rests(markers: Sequence[str]) -> set[str]:
    """Return the words of markers and of their halves."""
    pieces = [
        piece
        for text in markers
        for piece in (text, text[: len(text) // 2], text[len(text) // 2 :])
    ]
    return {word for piece in pieces for word in _WORDS.findall(piece)}


def lost(original: str, text: str, found: Parsed, markers: Sequence[str]) -> set[str]:
    """Return the words between the markers of a text that the parsed output lacks."""
    between = text
    for marker in markers:
        between = between.replace(marker, " ")
    calls = [*found.calls]
    # Python's form, too: calls in its syntax have True, False and None.
    written = json.dumps(calls, ensure_ascii=False) + repr(calls)
    seen = found.content + found.reasoning + written
    known = {*_WORDS.findall(original), *PUT_IN}
    return {word for word in _WORDS.findall(between) if word in known and word not in seen}


def invented(text: str, found: Parsed, layout: Sequence[str] = ()) -> list[str]:
    """Return parsed strings that the text does not contain; `layout` is what a parser may add."""
    calls = [leaf for name, arguments in found.calls for leaf in (name, *leaves(arguments))]
    return [
        *(leaf for leaf in calls if leaf not in text and leaf not in layout),
        *(
            visible
            for visible in (found.content, found.reasoning)
            if not is_subsequence(without(visible, layout), text)
        ),
    ]


def without(text: str, layout: Sequence[str]) -> str:
    """Return a text without the pieces that a parser may add."""
    for piece in layout:
        text = text.replace(piece, "")
    return text


def is_subsequence(visible: str, text: str) -> bool:
    """Return whether one text is a subsequence of another."""
    rest = iter(text)
    return all(char in rest for char in visible)


def leaves(value: Any) -> Iterator[str]:
    """Yield every string in a value, object keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
