"""What may become of a text on its way out of a model: each marker dropped, doubled or cut, with
space or text around.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from core.api import ReasoningFormat, ToolFormat
from core.testing.parsing import Parsed

_WORDS = re.compile(r"[A-Za-z]{3,}")
BOM = "\ufeff"
BETWEEN, OUTSIDE = PUT_IN = ("meanwhile", "Well")


def markers_of(*forms: ToolFormat | ReasoningFormat | None) -> list[str]:
    """Return what formats know as markers, longest first."""
    found: set[str] = set()
    for form in forms:
        if form is not None:
            found |= {
                *form.markers,
                *(form.call_ends if isinstance(form, ToolFormat) else form.starts + form.ends),
            }
    return sorted(found - {""}, key=lambda text: (-len(text), text))


def variations(text: str, markers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what was done to a text, and the text."""
    for outer in (BOM, " ", "\n\n", f"{OUTSIDE}, "):
        yield f"{outer!r} in front", outer + text
        yield f"{outer!r} behind", text + outer
    yield "line ends of Windows", text.replace("\n", "\r\n")
    if not markers:
        return
    for found in re.finditer("|".join(map(re.escape, markers)), text):
        before = text[: found.start()]
        marker = found[0]
        behind = text[found.end() :]
        for what, instead in (
            ("dropped", ""),
            ("doubled", marker * 2),
            ("cut in front", marker[len(marker) // 2 :]),
            ("cut behind", marker[: len(marker) // 2]),
            ("between spaces", f" {marker} "),
            ("between lines", f"\n{marker}\n"),
            ("behind text", f" {BETWEEN} {marker}"),
            ("in front of text", f"{marker} {BETWEEN} "),
        ):
            yield f"{marker!r} at {found.start()} {what}", before + instead + behind
        yield f"cut off in {marker!r} at {found.start()}", before + marker[: len(marker) // 2]


def rests(markers: Sequence[str]) -> set[str]:
    """Return the words that markers are made of, and those of their halves."""
    pieces = [
        piece
        for text in markers
        for piece in (text, text[: len(text) // 2], text[len(text) // 2 :])
    ]
    return {word for piece in pieces for word in _WORDS.findall(piece)}


def lost(original: str, text: str, found: Parsed, markers: Sequence[str]) -> set[str]:
    """Return words, of the original or put in, that stand between the markers of a text and nowhere
    in what came of it.
    """
    between = text
    for marker in markers:
        between = between.replace(marker, " ")
    seen = found.content + found.reasoning + json.dumps([*found.calls], ensure_ascii=False)
    known = {*_WORDS.findall(original), *PUT_IN}
    return {word for word in _WORDS.findall(between) if word in known and word not in seen}


def invented(text: str, found: Parsed) -> list[str]:
    """Return names and strings of calls that do not stand in the text, and shown text that is no
    selection of it.
    """
    calls = [leaf for name, arguments in found.calls for leaf in (name, *leaves(arguments))]
    return [
        *(leaf for leaf in calls if leaf not in text),
        *(shown for shown in (found.content, found.reasoning) if not is_selection(shown, text)),
    ]


def is_selection(shown: str, text: str) -> bool:
    """Say whether all characters of one text stand in another, in their order."""
    rest = iter(text)
    return all(char in rest for char in shown)


def leaves(value: Any) -> Iterator[str]:
    """Yield every string in a value, names of objects' values too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
