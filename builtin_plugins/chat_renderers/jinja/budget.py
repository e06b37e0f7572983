"""Limits of one rendering: CPU time and characters. Templates may come with untrusted requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension

MAX_CPU_S: Final = 5.0
"""CPU time limit of a rendering in seconds; typical prompts need less than 5 ms."""
TICKS_PER_CHECK: Final = 16
"""Loop iterations between two reads of the clock."""
MAX_CHARS: Final = 1 << 25
"""Character limit of a prompt and of a repetition; above any request limit."""
MAX_BITS: Final = 1 << 12
"""Bit limit of a product or power."""


class _Clock(threading.local):
    until_s = float("inf")
    ticks = 0


class Budget(Extension):
    """Counts loop iterations and macro calls, and stops a rendering at its CPU time limit."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._clock = _Clock()

    def watch(self, tree: nodes.Template) -> None:
        """Insert a tick into every loop and macro of the template."""
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            tick = nodes.ExprStmt(self.call_method("tick", lineno=node.lineno), lineno=node.lineno)
            node.body.insert(0, tick)  # type: ignore[attr-defined]

    def begin(self) -> None:
        """Start the time limit of this thread."""
        self._clock.until_s = time.thread_time() + MAX_CPU_S

    def tick(self) -> None:
        """Raise `SecurityError` after the time limit."""
        clock = self._clock
        clock.ticks += 1
        if not clock.ticks % TICKS_PER_CHECK and time.thread_time() > clock.until_s:
            raise SecurityError(f"rendering takes more than {MAX_CPU_S:g} s of processor time")


def joined(pieces: Iterable[str]) -> str:
    """Return the concatenated text. Raises `SecurityError` above the character limit."""
    return "".join(_counted(pieces))


def _counted(pieces: Iterable[str]) -> Iterator[str]:
    left = MAX_CHARS
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise SecurityError(f"the prompt has more than {MAX_CHARS} characters")
        yield piece


def check_product(operator: str, left: Any, right: Any) -> None:
    """Raise `SecurityError` for an excessive product or power."""
    if isinstance(left, int) and isinstance(right, int):
        bits = (
            left.bit_length() * right
            if operator == "**"
            else left.bit_length() + right.bit_length()
        )
        too_large = bits > MAX_BITS
    else:
        count, repeated = (left, right) if isinstance(left, int) else (right, left)
        too_large = (
            isinstance(count, int)
            and hasattr(repeated, "__len__")
            and count * len(repeated) > MAX_CHARS
        )
    if too_large:
        raise SecurityError(f"{operator} makes a value that is too large")
