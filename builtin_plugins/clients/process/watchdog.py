"""Detects a frozen engine process: no heartbeat, or a step beyond its timeout."""

from __future__ import annotations

from typing import Any

from builtin_plugins.executors.api import TICK_S, Heartbeat
from builtin_plugins.launchers.api import ChildProcess
from core.api import EngineConfig, EngineDead
from core.api.execution import ProcessFrozen


class Watchdog:
    """The heartbeats of one engine process at a time."""

    def __init__(self, config: EngineConfig) -> None:
        self._limits = config.service
        self.reset()

    def reset(self) -> None:
        """Start with a new process."""
        self._silence_s = 0.0
        self._beat = Heartbeat()

    def on_ready(self) -> None:
        """Restart the time without messages: the engine is ready."""
        self._silence_s = 0.0

    @property
    def silence_s(self) -> float:
        """Seconds since the engine's last heartbeat."""
        return max(self._silence_s, self._beat.silence_s)

    @property
    def busy_s(self) -> float:
        """Duration of the running step in seconds."""
        return self._beat.busy_s

    def note(self, message: Any, child: ChildProcess) -> None:
        """Record a message of the engine, or None after a tick without one.

        Kills a frozen engine and raises its error.
        """
        self._silence_s = 0.0 if message is not None else self._silence_s + TICK_S
        if isinstance(message, Heartbeat):
            self._beat = message
        if message is None or isinstance(message, Heartbeat):
            self._check(child)

    def _check(self, child: ChildProcess) -> None:
        limit_s = self._limits.heartbeat_timeout
        if self.silence_s > limit_s:
            child.kill()
            raise ProcessFrozen(
                f"it sent no heartbeat for {limit_s:g} s (--heartbeat-timeout) and was killed."
            )
        if self.busy_s > self._limits.step_timeout:
            child.kill()
            raise EngineDead(
                f"a step took more than {self._limits.step_timeout:g} s (--step-timeout); it was "
                "killed."
            )
