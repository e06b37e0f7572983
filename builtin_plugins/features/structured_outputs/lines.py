"""The outputs of a worker's constrained requests: opened before they start, waited for as long as a
step can wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from builtin_plugins.features.structured_outputs.handle import Line
from builtin_plugins.features.structured_outputs.keepers import Keepers, wait_for
from builtin_plugins.features.structured_outputs.messages import Advance, Points
from builtin_plugins.features.structured_outputs.news import (
    Failed,
    Late,
    News,
    Pace,
    Prepare,
    Ready,
    Told,
)
from core.api import InvalidRequest, RequestFailed
from core.logs import PAUSE_S, Seldom
from core.process.messages import Fault

log = logging.getLogger(__name__)

GRACE_S: Final = 0.004
"""CPU time of a keeper that a step waits for: a mask that has not got it is late through no fault
of its own.
"""
PATIENCE_S: Final = 0.25
"""By the clock, the longest that a step waits for masks, whoever has the machine."""
SLACK_S: Final = 0.001
"""What a mask may take beyond the time that the model leaves it."""
NUM_QUICK: Final = 16
"""Masks in time after which a row counts as slow no longer."""
_POLL_S: Final = 0.002
_SMOOTHING: Final = 0.1


class Lines:
    """By request, and by row once it has one."""

    def __init__(self, keepers: Keepers, tell: Callable[[list[Told]], None], rank: int) -> None:
        self._keepers = keepers
        self._tell = tell
        self._rank = rank
        self._by_request: dict[str, Line] = {}
        self._by_row: dict[int, Line] = {}
        self._begun_s = 0.0
        self._room_s = 0.0
        """What a mask may take without a step waiting for it, as it was lately."""
        self._seldom = Seldom(log)
        self._silent_until_s = 0.0
        keepers.heard = self._hear

    def __contains__(self, row: int) -> bool:
        return row in self._by_row

    def __getitem__(self, row: int) -> Line:
        return self._by_row[row]

    def update(self, news: News) -> None:
        """Take over which requests have left, which have come, and which will."""
        with self._keepers.lock:
            for row in (*news.ended, *(row for row, _ in news.new)):
                self._by_row.pop(row, None)
            for request_id in news.gone:
                line = self._by_request.pop(request_id, None)
                if line is not None:
                    self._keepers.drop(line)
            for row, request_id in news.new:
                self._by_row[row] = self._by_request[request_id]
            for one in news.soon:
                self._prepare(one)

    def _prepare(self, one: Prepare) -> None:
        """Have the mask made that a request goes on with; say so when it is there."""
        line = self._by_request.get(one.request_id)
        spent_s = 0.0 if line is None else line.spent_s
        if line is not None and (line.length != one.length or line.error is not None):
            self._keepers.drop(line)
            line = None
        if line is None:
            names = tuple(one.params.backend.split(","))
            handle = self._keepers.get((names, one.params.constraint()))
            line = self._by_request[one.request_id] = handle.open(one.length, one.request_id)
            line.spent_s = spent_s
            handle.begin(
                line, one.prompt_end, one.output, one.stops, skips=one.params.skip_reasoning
            )
        line.is_late = False
        line.announces = True
        if line.is_pending:
            self._keepers.watch(line.handle)
        else:
            self._announce(line)

    # --- steps

    def begin_wait(self) -> None:
        """A step wants its masks: note how long they had."""
        if self._begun_s:
            self._room_s += _SMOOTHING * (time.monotonic() - self._begun_s - self._room_s)
            self._begun_s = 0.0

    def wait(self, lines: Iterable[Line]) -> None:
        """Wait for masks; those whose keepers had their share of time and have not made them are
        late.
        """
        missing = [line for line in lines if line.is_pending and not line.is_late]
        give_up_s = time.monotonic() + PATIENCE_S
        while missing:
            with self._keepers.lock:
                handles = {line.handle for line in missing}
                for handle in handles:
                    handle.pump()
                missing = [line for line in missing if line.is_pending]
                is_over = time.monotonic() > give_up_s
                for line in missing:
                    if is_over or line.handle.used_s() > max(GRACE_S, self._room_s):
                        line.is_late = True
                        self._keepers.watch(line.handle)
                missing = [line for line in missing if not line.is_late]
                sockets = [line.handle.fileno() for line in missing]
            if missing:
                wait_for(sockets, _POLL_S)

    def points(self, asked: list[tuple[Line, Points]]) -> None:
        """Have the masks of points made."""
        with self._keepers.lock:
            for line, message in asked:
                if line.error is None:
                    line.is_pending = True
                    line.handle.send([message])

    def advance(self, kept: list[tuple[Line, list[int]]]) -> None:
        """Go on by the tokens of a step, and have the next masks made."""
        by_handle: dict[int, tuple[Line, list[Advance]]] = {}
        with self._keepers.lock:
            kept = [(line, tokens) for line, tokens in kept if line.error is None]
            for line, tokens in kept:
                line.length += len(tokens)
                line.is_pending = True
                line.announces = line.is_slow
                by_handle.setdefault(id(line.handle), (line, []))[1].append(
                    Advance(line.number, tokens)
                )
            for line, messages in by_handle.values():
                line.handle.send(messages)
            for line, _ in kept:
                if line.announces:
                    self._keepers.watch(line.handle)
        self._begun_s = time.monotonic()

    def late(self, line: Line) -> Told:
        """Return that a step has gone without a line's mask, and why."""
        if line.error is not None:
            return self._failure(line)
        now = time.monotonic()
        if now > self._silent_until_s:
            self._silent_until_s = now + PAUSE_S
            log.warning(
                "a mask of %s is late; request %s sits steps out until it is there",
                line.handle.kind,
                line.owner,
            )
        return Late(line.owner, self._rank)

    # --- what keepers say

    def _hear(self, line: Line) -> None:
        """A mask has come, or none will."""
        if self._by_request.get(line.owner) is not line:
            return
        line.num_quick = 0 if line.work_s > self._room_s + SLACK_S else line.num_quick + 1
        is_slow = line.num_quick < (NUM_QUICK if line.is_slow else 1)
        if is_slow != line.is_slow:
            line.is_slow = is_slow
            line.announces = True
            self._tell([Pace(line.owner, self._rank, is_slow)])
        if line.announces or line.is_late:
            self._announce(line)

    def _announce(self, line: Line) -> None:
        line.announces = False
        if line.error is not None:
            self._tell([self._failure(line)])
        else:
            compile_s = line.handle.compile_s
            line.handle.compile_s = 0.0
            self._tell([Ready(line.owner, self._rank, line.length, compile_s)])

    def _failure(self, line: Line) -> Told:
        error = line.error or RequestFailed("there is no mask")
        if not isinstance(error, InvalidRequest):
            self._seldom.error(
                line.handle.kind, f"a constrained request fails, alone: {error}", error
            )
        return Failed(line.owner, self._rank, Fault.of(error), getattr(error, "budget", ""))
