"""The whitespace of the texts that grammars allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Layout:
    """The whitespace between JSON tokens, as regexes."""

    around: str = r"[\x{9}\x{a}\x{d}\x{20}]*"
    """Around brackets and before separators."""
    after: str = r"[\x{9}\x{a}\x{d}\x{20}]*"
    """After commas and colons."""


FLEXIBLE: Final = Layout()
COMPACT: Final = Layout("", r"\x{20}")
