"""The constrained outputs of a worker: prepared before they start, and waited for by steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from builtin_plugins.executors.api import RemoteError
from builtin_plugins.features.structured_outputs.grammar_handle import (
    ConstrainedOutput,
    GrammarLost,
)
from builtin_plugins.features.structured_outputs.grammar_pool import (
    GrammarProcessPool,
    wait_readable,
)
from builtin_plugins.features.structured_outputs.grammar_protocol import AdvanceOutput, PointMasks
from builtin_plugins.features.structured_outputs.messages import (
    MaskFailed,
    MaskLate,
    MaskLost,
    MaskMessage,
    MaskReady,
    MaskTiming,
    PrepareMask,
    StepChanges,
)
from builtin_plugins.grammar_backends.api import constraint_of
from core.api import InvalidRequest, RequestFailed
from core.api.serving import PAUSE_S, RateLimitedLogger

log = logging.getLogger(__name__)

GRACE_S: Final = 0.004
"""CPU time of a grammar process that a step waits for, however little time the model leaves."""
MAX_STEP_WAIT_S: Final = 0.25
"""Maximum wall-clock time that a step waits for masks."""
SLACK_S: Final = 0.001
"""CPU time of a mask beyond the time that the model leaves before the mask counts as slow."""
NUM_IN_TIME: Final = 16
"""Consecutive masks in time after which an output no longer counts as slow."""
_POLL_S: Final = 0.002
_SMOOTHING: Final = 0.1


class ConstrainedOutputs:
    """Constrained outputs by request id, and by row once they have one."""

    def __init__(
        self,
        pool: GrammarProcessPool,
        send: Callable[[list[MaskMessage]], None],
        rank: int,
    ) -> None:
        self._pool = pool
        self._send = send
        self._rank = rank
        self._by_request: dict[str, ConstrainedOutput] = {}
        self._by_row: dict[int, ConstrainedOutput] = {}
        self._begun_s = 0.0
        self._available_s = 0.0
        """Moving average of the time in which a mask delays no step."""
        self._rate_limited = RateLimitedLogger(log)
        self._silent_until_s = 0.0
        pool.on_change = self._on_change

    def __contains__(self, row: int) -> bool:
        return row in self._by_row

    def __getitem__(self, row: int) -> ConstrainedOutput:
        return self._by_row[row]

    def update(self, changes: StepChanges) -> None:
        """Apply a step's finished, new and upcoming requests."""
        with self._pool.lock:
            for row in (*changes.ended, *(row for row, _ in changes.new)):
                self._by_row.pop(row, None)
            for request_id in changes.gone:
                output = self._by_request.pop(request_id, None)
                if output is not None:
                    self._pool.drop(output)
            for row, request_id in changes.new:
                self._by_row[row] = self._by_request[request_id]
            for request in changes.soon:
                self._prepare(request)

    def _prepare(self, request: PrepareMask) -> None:
        """Make the next mask of a request and announce it."""
        output = self._by_request.get(request.request_id)
        spent_s = 0.0 if output is None else output.spent_s
        if output is not None and (output.length != request.length or output.error is not None):
            self._pool.drop(output)
            output = None
        if output is None:
            backends = tuple(request.params.backend.split(","))
            handle = self._pool.get((backends, constraint_of(request.params)))
            output = handle.open(request.length, request.request_id)
            self._by_request[request.request_id] = output
            output.spent_s = spent_s
            handle.begin(output, request)
        output.is_late = False
        output.announces = True
        if output.is_pending:
            self._pool.watch(output.handle)
        else:
            self._announce(output)

    # --- steps

    def begin_wait(self) -> None:
        """Record how much time the masks had: a step needs them now."""
        if self._begun_s:
            passed_s = time.monotonic() - self._begun_s
            self._available_s += _SMOOTHING * (passed_s - self._available_s)
            self._begun_s = 0.0

    def wait(self, outputs: Iterable[ConstrainedOutput]) -> None:
        """Wait for masks; those that had their share of CPU time and are not ready are late."""
        missing = [output for output in outputs if output.is_pending and not output.is_late]
        deadline_s = time.monotonic() + MAX_STEP_WAIT_S
        while missing:
            with self._pool.lock:
                for handle in {output.handle for output in missing}:
                    handle.pump()
                missing = [output for output in missing if output.is_pending]
                is_over = time.monotonic() > deadline_s
                for output in missing:
                    limit_s = max(GRACE_S, self._available_s)
                    if is_over or output.handle.used_s() > limit_s:
                        output.is_late = True
                        self._pool.watch(output.handle)
                missing = [output for output in missing if not output.is_late]
                descriptors = [output.handle.fileno() for output in missing]
            if missing:
                wait_readable(descriptors, _POLL_S)

    def request_points(self, requested: list[tuple[ConstrainedOutput, PointMasks]]) -> None:
        """Request the masks of sampling points after draft tokens."""
        with self._pool.lock:
            for output, message in requested:
                if output.error is None:
                    output.is_pending = True
                    output.handle.send([message])

    def advance(self, accepted: list[tuple[ConstrainedOutput, list[int]]]) -> None:
        """Append a step's accepted tokens, and request the next masks."""
        by_handle: dict[int, tuple[ConstrainedOutput, list[AdvanceOutput]]] = {}
        with self._pool.lock:
            accepted = [(output, tokens) for output, tokens in accepted if output.error is None]
            for output, tokens in accepted:
                output.length += len(tokens)
                output.is_pending = True
                output.announces = output.is_slow
                _, messages = by_handle.setdefault(id(output.handle), (output, []))
                messages.append(AdvanceOutput(output.number, tokens))
            for output, messages in by_handle.values():
                output.handle.send(messages)
            for output, _ in accepted:
                if output.announces:
                    self._pool.watch(output.handle)
        self._begun_s = time.monotonic()

    def late_message(self, output: ConstrainedOutput) -> MaskMessage:
        """Return the message for a step that runs without an output's mask."""
        if output.error is not None:
            return self._failure(output)
        now = time.monotonic()
        if now > self._silent_until_s:
            self._silent_until_s = now + PAUSE_S
            log.warning(
                "a mask of %s is late; request %s skips steps until it is ready",
                output.handle.kind,
                output.owner,
            )
        return MaskLate(output.owner, self._rank)

    # --- messages of grammar processes

    def _on_change(self, output: ConstrainedOutput) -> None:
        """Handle a finished mask, or a failure."""
        if self._by_request.get(output.owner) is not output:
            return
        if output.work_s > self._available_s + SLACK_S:
            output.num_in_time = 0
        else:
            output.num_in_time += 1
        is_slow = output.num_in_time < (NUM_IN_TIME if output.is_slow else 1)
        if is_slow != output.is_slow:
            output.is_slow = is_slow
            output.announces = True
            self._send([MaskTiming(output.owner, self._rank, is_slow)])
        if output.announces or output.is_late:
            self._announce(output)

    def _announce(self, output: ConstrainedOutput) -> None:
        output.announces = False
        if output.error is not None:
            self._send([self._failure(output)])
            return
        compile_s = output.handle.compile_s
        output.handle.compile_s = 0.0
        self._send([MaskReady(output.owner, self._rank, output.length, compile_s)])

    def _failure(self, output: ConstrainedOutput) -> MaskMessage:
        error = output.error or RequestFailed("there is no mask")
        if isinstance(error, GrammarLost):
            fault = RemoteError("RequestFailed", str(error))
            return MaskLost(output.owner, self._rank, fault, error.pid, error.is_killed)
        if not isinstance(error, InvalidRequest):
            text = f"a constrained request failed: {error}"
            self._rate_limited.error(output.handle.kind, text, error)
        return MaskFailed(
            output.owner,
            self._rank,
            RemoteError.from_exception(error),
            getattr(error, "budget", ""),
        )
