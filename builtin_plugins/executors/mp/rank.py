"""One rank as its executor sees it: a process, a thread that listens to it, and for how long it has
been silent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from builtin_plugins.executors.mp.messages import FromRank
from core.api import EngineError
from core.process.messages import Beat, Start
from core.process.spawn import TICK_S, Child

Heard = Callable[[int, Any], None]
"""Called with a rank and what it said, or the error it ended with."""


class RankProcess:
    """Starts the process; from then on whatever it says is passed on at once, but for its signs of
    life.
    """

    def __init__(self, start: Start, environment: Mapping[str, str], heard: Heard) -> None:
        self.rank = start.rank
        self.silence_s = 0.0
        """Seconds without a sign of life since the first one; counted in ticks, so that a halted
        machine adds none.
        """
        self._heard = heard
        self._closed = threading.Event()
        # Not a leader: who kills the engine's group must reach a rank that is frozen, too.
        self._child = Child(start, FromRank, leader=False, environment=environment)
        self._thread = threading.Thread(target=self._listen, name=start.process, daemon=True)
        self._thread.start()

    @property
    def label(self) -> str:
        """Name, process number and stage, for error messages."""
        return f"{self._child.name!r} (pid {self._child.pid}, {self._child.stage})"

    def send(self, message: Any) -> None:
        """Send a struct, or one already encoded."""
        self._child.channel.send(message)

    def kill(self) -> None:
        """End it at once, frozen or not."""
        self._child.kill()

    def hush(self) -> None:
        """Stop listening; what it says from now on is nobody's concern."""
        self._closed.set()

    def close(self, grace_s: float) -> None:
        """Wait for its end, then see to it; nothing of it is left. Safe to call twice."""
        self.hush()
        self._thread.join()
        self._child.close(grace_s)

    def _listen(self) -> None:
        beats = False
        try:
            while not self._closed.is_set():
                message = self._child.receive()
                beats = beats or isinstance(message, Beat)
                self.silence_s = self.silence_s + TICK_S if message is None and beats else 0.0
                if message is not None and not isinstance(message, Beat):
                    self._heard(self.rank, message)
        except EngineError as error:
            self._heard(self.rank, error)
        while not self._closed.wait(TICK_S):  # the dead are silent
            self.silence_s += TICK_S
