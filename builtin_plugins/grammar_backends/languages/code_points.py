"""Sets of Unicode code points as sorted ranges. Surrogates are no characters and in no set."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint, inclusive ranges of code points."""

_SURROGATES: Final = (0xD800, 0xDFFF)
_LAST: Final = sys.maxunicode
ALL: Final[Ranges] = ((0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, _LAST))


def normalize(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of ranges as sorted, disjoint ranges without surrogates."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return intersect(tuple(merged), ALL)


def union(*sets: Ranges) -> Ranges:
    """Return the code points of any of the sets."""
    return normalize(pair for ranges in sets for pair in ranges)


def intersect(a: Ranges, b: Ranges) -> Ranges:
    """Return the code points of both sets."""
    found = []
    i = 0
    j = 0
    while i < len(a) and j < len(b):
        low = max(a[i][0], b[j][0])
        high = min(a[i][1], b[j][1])
        if low <= high:
            found.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def complement(ranges: Ranges) -> Ranges:
    """Return the characters that are not in a set."""
    found = []
    start = 0
    for low, high in ranges:
        if low > start:
            found.append((start, low - 1))
        start = high + 1
    if start <= _LAST:
        found.append((start, _LAST))
    return intersect(tuple(found), ALL)


def of_text(characters: str) -> Ranges:
    """Return the set of some characters."""
    return normalize((ord(c), ord(c)) for c in characters)


DIGIT: Final = of_text("0123456789")
WORD: Final = normalize([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE: Final = of_text(
    "\t\n\v\f\r \xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
LINE_ENDS: Final = of_text("\n\r\u2028\u2029")

_LONG_NAMES: Final = {
    "Letter": "L",
    "Lowercase_Letter": "Ll",
    "Uppercase_Letter": "Lu",
    "Titlecase_Letter": "Lt",
    "Cased_Letter": "LC",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "punct": "P",
    "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd",
    "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po",
    "Symbol": "S",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk",
    "Other_Symbol": "So",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp",
    "Other": "C",
    "Control": "Cc",
    "cntrl": "Cc",
    "Format": "Cf",
    "Private_Use": "Co",
    "Unassigned": "Cn",
}


@lru_cache(maxsize=1)
def _by_category() -> dict[str, Ranges]:
    """Return the ranges of each general category; takes some tenths of a second once."""
    found: dict[str, list[tuple[int, int]]] = {}
    last = ""
    start = 0
    category = unicodedata.category
    for code in range(_LAST + 2):
        name = category(chr(code)) if code <= _LAST else ""
        if name != last:
            if last:
                found.setdefault(last, []).append((start, code - 1))
            last = name
            start = code
    return {name: intersect(tuple(ranges), ALL) for name, ranges in found.items()}


def property_set(name: str) -> Ranges | None:
    """Return the set of a Unicode property escape; None for an unsupported property."""
    key, _, value = name.rpartition("=")
    if key not in ("", "General_Category", "gc"):
        return None
    if value == "Any":
        return ALL
    if value == "ASCII":
        return ((0, 0x7F),)
    short = _LONG_NAMES.get(value, value)
    letters = ("Lu", "Ll", "Lt") if short == "LC" else None
    sets = [
        ranges
        for category, ranges in _by_category().items()
        if (category in letters if letters else category.startswith(short))
    ]
    return union(*sets) if sets and short else None
