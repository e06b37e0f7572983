"""The order of grammar compilations: a few at once, and the slow ones alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from builtin_plugins.features.structured_outputs.grammar_handle import GrammarHandle, ProcessState

if TYPE_CHECKING:
    from builtin_plugins.features.structured_outputs.compiler_pool import CompilerPool

NUM_QUICK: Final = 2
"""Number of constraints that compile at once."""
QUICK_S: Final = 0.25
"""CPU time after which a compilation continues alone."""


class CompileQueue:
    """Starts the compilations of one pool. Not thread-safe."""

    def __init__(self) -> None:
        self.num_compiled = 0
        """Number of compilations started."""
        self._queue: deque[GrammarHandle] = deque()
        self._quick: list[GrammarHandle] = []
        self._slow: deque[GrammarHandle] = deque()
        """Slow compilations: the first one runs, the others restart after it."""

    def add(self, handle: GrammarHandle) -> None:
        """Queue the first compilation of a constraint."""
        self._queue.append(handle)

    def start(self, compilers: CompilerPool, has_room: Callable[[], bool]) -> None:
        """Start compilations within the limits; `has_room` limits the first ones."""
        self._quick = [each for each in self._quick if each.state is ProcessState.COMPILING]
        while self._queue and len(self._quick) < NUM_QUICK and has_room():
            handle = self._queue.popleft()
            if handle.state is ProcessState.QUEUED:
                self._quick.append(handle)
                handle.attach_socket(*compilers.spawn())
                self.num_compiled += 1
        while self._slow and self._slow[0].state > ProcessState.COMPILING:
            self._slow.popleft()
        if self._slow and self._slow[0].state is ProcessState.QUEUED:
            self._slow[0].attach_socket(*compilers.spawn())

    def note_work(self, handle: GrammarHandle, used_s: float) -> None:
        """Move a compilation to the slow ones once it has taken `used_s` > `QUICK_S`."""
        if used_s > QUICK_S and handle in self._quick:
            self._quick.remove(handle)
            if self._slow:
                handle.restart_later()
            self._slow.append(handle)
