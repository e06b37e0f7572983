"""One rank as its executor sees it: a process, its listener thread, and the silence of both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from builtin_plugins.executors.api import TICK_S, Heartbeat, Start
from builtin_plugins.executors.mp.messages import FromRank
from builtin_plugins.launchers.api import Group, Launcher
from core.api import EngineError

OnMessage = Callable[[int, Any], None]
"""Called with a rank and its message, or the error that ended it."""


class RankProcess:
    """Starts a rank process and passes on its messages, except heartbeats, at once."""

    def __init__(
        self,
        launcher: Launcher,
        start: Start,
        environment: Mapping[str, str],
        group: Group,
        on_message: OnMessage,
    ) -> None:
        self.rank = start.rank
        self.silence_s = 0.0
        """Seconds since the last heartbeat, counted in ticks: a halted machine adds none."""
        self._on_message = on_message
        self._closed = threading.Event()
        self._child = launcher.start(start, FromRank, environment, group)
        self._thread = threading.Thread(target=self._listen, name=start.process, daemon=True)
        self._thread.start()

    @property
    def label(self) -> str:
        """Name, process id, host and stage, for error messages."""
        return self._child.label

    def send(self, message: Any) -> None:
        """Send a struct, or an encoded one."""
        self._child.send(message)

    def kill(self) -> None:
        """Kill the process, frozen or not."""
        self._child.kill()

    def stop_listening(self) -> None:
        """Drop all further messages."""
        self._closed.set()

    def close(self, grace_s: float) -> None:
        """Wait up to `grace_s` for the exit, then kill the process. Safe to call twice."""
        self.stop_listening()
        self._thread.join()
        self._child.close(grace_s)

    def _listen(self) -> None:
        has_heartbeat = False
        try:
            while not self._closed.is_set():
                message = self._child.receive()
                has_heartbeat = has_heartbeat or isinstance(message, Heartbeat)
                if message is None and has_heartbeat:
                    self.silence_s += TICK_S
                else:
                    self.silence_s = 0.0
                if message is not None and not isinstance(message, Heartbeat):
                    self._on_message(self.rank, message)
        except EngineError as error:
            self._on_message(self.rank, error)
        while not self._closed.wait(TICK_S):  # an exited process stays silent
            self.silence_s += TICK_S
