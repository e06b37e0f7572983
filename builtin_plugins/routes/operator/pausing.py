"""Scheduler extension that pauses the engine: no step computes, and no request starts.

Paused requests stay in the batch with their blocks, and resume there. Each call returns the number
of running requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api import InvalidRequest

NAME: Final = "pausing"


class PauseExtension:
    """State of the pause: resumed, draining, or paused."""

    name = NAME

    def __init__(self, num_rows: int) -> None:
        self._no_tokens: Final[Mapping[int, int]] = dict.fromkeys(range(num_rows), 0)
        self._starts = True
        """Whether requests may start."""
        self._computes = True
        """Whether rows may compute."""
        self._parked: list[str] = []
        self._scheduler: Any = None

    def attach(self, scheduler: Any) -> None:
        """Store the scheduler, for a resume to wake its requests."""
        self._scheduler = scheduler

    def may_start(self, request: Any) -> bool:
        """Park a request during a pause."""
        if not self._starts:
            self._parked.append(request.request_id)
        return self._starts

    def is_active(self) -> bool:
        """Return whether rows are limited."""
        return not self._computes

    def limits(self, rows: Any) -> Mapping[int, int]:
        """Return a token limit of 0 for every row during a pause, including prefill rows."""
        return {} if self._computes else self._no_tokens

    def call(self, verb: str, data: bytes) -> bytes:
        """Change the state and return it.

        `pause` stops everything, `drain` lets running requests finish, `resume` ends either,
        `state` changes nothing.
        """
        if verb in ("pause", "drain"):
            self._starts = False
            self._computes = verb == "drain"
        elif verb == "resume":
            self._starts = True
            self._computes = True
            parked = self._parked
            self._parked = []
            for request_id in parked:  # the scheduler ignores those that have ended
                self._scheduler.wake(request_id)
        elif verb != "state":
            raise InvalidRequest(
                "name", f"{NAME} knows pause, drain, resume and state, not {verb!r}."
            )
        return f"{int(not self._starts)} {self._scheduler.num_running}".encode()
