"""The scheduler half of pausing: nothing is computed, and nothing starts, until the engine is told
to go on.

Requests keep their rows and blocks, and go on where they were. Each call answers with how many
requests are running.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api import InvalidRequest

NAME: Final = "pausing"


class Pausing:
    """Three states: going on, letting what runs end, and resting."""

    name = NAME

    def __init__(self, num_rows: int) -> None:
        self._nothing: Final[Mapping[int, int]] = dict.fromkeys(range(num_rows), 0)
        self._starts = True
        """Requests may start."""
        self._computes = True
        """Rows may compute."""
        self._parked: list[str] = []
        self._scheduler: Any = None

    def attach(self, scheduler: Any) -> None:
        """Remember whom to wake."""
        self._scheduler = scheduler

    def may_start(self, request: Any) -> bool:
        """Park whoever would start meanwhile."""
        if not self._starts:
            self._parked.append(request.request_id)
        return self._starts

    def steers(self) -> bool:
        """Say whether rows are to be limited."""
        return not self._computes

    def limits(self, rows: Any) -> Mapping[int, int]:
        """Let every row sit the step out, those of prompts under way, too."""
        return {} if self._computes else self._nothing

    def call(self, verb: str, data: bytes) -> bytes:
        """Change the state, or tell it: "rest", "end" (what runs ends, nothing starts), "go_on",
        "state".
        """
        if verb in ("rest", "end"):
            self._starts = False
            self._computes = verb == "end"
        elif verb == "go_on":
            self._starts = self._computes = True
            woken = self._parked
            self._parked = []
            for request_id in woken:  # those that have ended meanwhile are passed over
                self._scheduler.wake(request_id)
        elif verb != "state":
            raise InvalidRequest("name", f"{NAME} knows rest, end, go_on and state, not {verb!r}.")
        return f"{int(not self._starts)} {self._scheduler.num_running}".encode()
