"""Finding markers in text that comes in pieces: whatever the pieces, the same marker is found at
the same place.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Markers:
    """Several texts to look for at once: the first wins, of those that begin together the longest."""

    pattern: re.Pattern[str]
    beginnings: dict[str, tuple[str, ...]]
    """By last character: the proper beginnings of markers, longest first."""

    def held(self, text: str, start: int) -> int:
        """Return where the longest end of `text[start:]` begins that may yet become a marker; its
        length if none.
        """
        end = len(text)
        for beginning in self.beginnings.get(text[-1:], ()):
            if len(beginning) <= end - start and text.endswith(beginning):
                return end - len(beginning)
        return end


@lru_cache(maxsize=1024)
def markers(*texts: str) -> Markers:
    """Return the finder of some texts, none of them empty."""
    beginnings: dict[str, list[str]] = defaultdict(list)
    for beginning in sorted(
        {text[:i] for text in texts for i in range(1, len(text))}, key=len, reverse=True
    ):
        beginnings[beginning[-1]].append(beginning)
    longest_first = sorted(texts, key=len, reverse=True)
    return Markers(
        re.compile("|".join(map(re.escape, longest_first))),
        {last: tuple(b) for last, b in beginnings.items()},
    )
