"""What one rendering may take: processor time and characters.

Templates come from strangers, some of them with requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension

MOST_S: Final = 5.0
"""Of processor time of the thread that renders; a usual prompt takes less than a thousandth."""
TURNS: Final = 16
"""Of loops, between two looks at the clock: a look costs as much as a short turn."""
MOST_CHARS: Final = 1 << 25
"""Of a prompt, and of what one product makes: more than any request may bring."""
MOST_BITS: Final = 1 << 12
"""Of a number that a product or a power makes."""


class _Clock(threading.local):
    until_s = float("inf")
    turns = 0


class Budget(Extension):
    """Counts turns of loops and calls of macros, and looks at the clock: without these, a template
    ends by itself.
    """

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._clock = _Clock()

    def watch(self, tree: nodes.Template) -> None:
        """Let the template tell of its turns."""
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            told = nodes.ExprStmt(self.call_method("tick", lineno=node.lineno), lineno=node.lineno)
            node.body.insert(0, told)  # type: ignore[attr-defined]

    def begin(self) -> None:
        """Start the clock of this thread."""
        self._clock.until_s = time.thread_time() + MOST_S

    def tick(self) -> None:
        """Raise `SecurityError` when the time is over."""
        clock = self._clock
        clock.turns += 1
        if not clock.turns % TURNS and time.thread_time() > clock.until_s:
            raise SecurityError(f"rendering takes more than {MOST_S:g} s of processor time")


def joined(pieces: Iterable[str]) -> str:
    """Return a text from its pieces. Raises `SecurityError` where there are too many characters."""
    return "".join(_counted(pieces))


def _counted(pieces: Iterable[str]) -> Iterator[str]:
    left = MOST_CHARS
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise SecurityError(f"the prompt has more than {MOST_CHARS} characters")
        yield piece


def check_product(operator: str, left: Any, right: Any) -> None:
    """Raise `SecurityError` for a product or power that is too large to be meant."""
    if isinstance(left, int) and isinstance(right, int):
        bits = (
            left.bit_length() * right
            if operator == "**"
            else left.bit_length() + right.bit_length()
        )
        too_large = bits > MOST_BITS
    else:
        count, repeated = (left, right) if isinstance(left, int) else (right, left)
        too_large = (
            isinstance(count, int)
            and hasattr(repeated, "__len__")
            and count * len(repeated) > MOST_CHARS
        )
    if too_large:
        raise SecurityError(f"{operator} makes a value that is too large")
