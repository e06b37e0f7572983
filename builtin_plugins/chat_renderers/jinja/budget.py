"""Limits of one rendering: CPU time and characters. Templates may come with untrusted requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.runtime import str_join
from jinja2.visitor import NodeTransformer

from builtin_plugins.chat_renderers.jinja.value_limits import (
    MAX_CHARS,
    MAX_ITEMS,
    check_concat,
    check_sum,
    length_of,
)

MAX_CPU_S: Final = 5.0
"""CPU time limit of a rendering in seconds; typical prompts need less than 5 ms."""
TICKS_PER_CHECK: Final = 16
"""Loop iterations between two reads of the clock."""
MAX_TOTAL_CHARS: Final = 1 << 29
"""Characters and items of all large values that a rendering makes."""
LARGE: Final = 4096
"""Length of a value that counts as large."""
MAX_BITS: Final = 1 << 12
"""Bit limit of a product or power."""


class _Clock(threading.local):
    until_s = float("inf")
    ticks = 0
    left = MAX_TOTAL_CHARS


class Budget(Extension):
    """Counts loop iterations and macro calls, and stops a rendering at its CPU time limit."""

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._clock = _Clock()

    def watch(self, tree: nodes.Template) -> None:
        """Insert a tick into every loop and macro of the template, and limits into its sums."""
        _SumLimits(self).visit(tree)
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            tick = nodes.ExprStmt(self.call_method("tick", lineno=node.lineno), lineno=node.lineno)
            node.body.insert(0, tick)  # type: ignore[attr-defined]

    def begin(self) -> None:
        """Start the time limit of this thread."""
        self._clock.until_s = time.thread_time() + MAX_CPU_S
        self._clock.left = MAX_TOTAL_CHARS

    def tick(self) -> None:
        """Raise `SecurityError` after the time limit."""
        clock = self._clock
        clock.ticks += 1
        if not clock.ticks % TICKS_PER_CHECK:
            self._check_time()

    def _check_time(self) -> None:
        if time.thread_time() > self._clock.until_s:
            raise SecurityError(f"rendering takes more than {MAX_CPU_S:g} s of processor time")

    def spend(self, value: Any) -> Any:
        """Return a value that the template made. Raises `SecurityError` above a limit."""
        length = length_of(value)
        if length > LARGE:
            self._clock.left -= length
            if self._clock.left < 0:
                raise SecurityError(f"all texts have more than {MAX_TOTAL_CHARS} characters")
            self._check_time()
        return value

    def add(self, left: Any, right: Any) -> Any:
        """Return the sum of two values."""
        check_sum(left, right)
        return self.spend(left + right)

    def concat(self, *parts: Any) -> Any:
        """Return the texts of values, concatenated."""
        check_concat(parts)
        return self.spend(str_join(parts))

    def joined(self, pieces: Iterable[str]) -> str:
        """Return the text of a block or a macro."""
        text: str = self.spend(joined(pieces))
        return text


class _SumLimits(NodeTransformer):
    """Replaces `+` and `~` by calls that check what they make."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def visit_Add(self, node: nodes.Add) -> nodes.Node:
        """Replace a sum."""
        self.generic_visit(node)
        return self._budget.call_method("add", [node.left, node.right], lineno=node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Replace a concatenation."""
        self.generic_visit(node)
        return self._budget.call_method("concat", node.nodes, lineno=node.lineno)


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
        limit = MAX_CHARS if isinstance(repeated, str) else MAX_ITEMS
        too_large = (
            isinstance(count, int)
            and hasattr(repeated, "__len__")
            and count * len(repeated) > limit
        )
    if too_large:
        raise SecurityError(f"{operator} makes a value that is too large")
