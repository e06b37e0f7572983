"""Splits a growing output into reasoning and answer.

Knows texts only; knows no parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from builtin_plugins.output_parsers.reasoning_bounds import ReasoningBounds


class MarkerAnswerFinder:
    """Finds the answer by the texts around the reasoning; stop strings count in the answer."""

    def __init__(self, bounds: ReasoningBounds) -> None:
        self._bounds = bounds
        self._at = bounds.at_start
        self._starts = _any_of(bounds.starts)
        self._ends = _any_of(bounds.ends)
        self._longest = max(map(len, (*bounds.starts, *bounds.ends)), default=1)
        self._tail = ""
        """Last characters, which may be part of a start or an end."""
        self._undecided = ""
        """First text, which may become the start of optional reasoning."""

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield pieces of the text, with whether each belongs to the answer.

        Text that may start optional reasoning is yielded when that is decided.
        """
        if self._at == "optional":
            text = self._undecided + text
            self._undecided = ""
            first = text.lstrip()
            if any(start.startswith(first) and start != first for start in self._bounds.starts):
                self._undecided = text
                return
            begins = first.startswith(self._bounds.starts)
            self._at = "inside" if begins else "outside"
        while text:
            is_answer = self._at == "outside"
            may_change = self._bounds.resumes or not is_answer
            pattern = self._starts if is_answer else self._ends
            have = len(self._tail)
            found = pattern.search(self._tail + text) if may_change else None
            end = len(text) if found is None else found.end() - have
            yield text[:end], is_answer
            self._tail = "" if found else (self._tail + text)[1 - self._longest :]
            if found is not None:
                self._at = "inside" if is_answer else "outside"
            text = text[end:]

    def flush(self) -> str:
        """Return the undecided text at the end of the output; it belongs to the answer."""
        text = self._undecided
        self._undecided = ""
        return text


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")
