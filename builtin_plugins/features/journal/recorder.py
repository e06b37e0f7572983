"""Records every call of the scheduler and every plan it returns."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from builtin_plugins.features.journal.background_file import BackgroundFile
from core.api.config import create_option_file
from core.api.execution import StepPlan
from core.testing.journal import EXTENSION, LENGTH_BYTES, RECORDED, Frame, header_of

log = logging.getLogger(__name__)


class JournalExtension:
    """Scheduler half: lets the engine call a `Journal` instead of the scheduler."""

    name = EXTENSION

    def __init__(self, path: str) -> None:
        self._path = path

    def wrap(self, scheduler: Any) -> Journal:
        """Return the recording scheduler."""
        return Journal(self._path, scheduler)


class Journal:
    """A scheduler that records its calls, except those that raise; use it
    instead of the scheduler.

    Calls that an extension makes from within its own methods are not recorded: in a
    replay the extension makes them again.
    """

    def __init__(
        self, path: str, scheduler: Any, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file: BackgroundFile | None = BackgroundFile(create_option_file("--journal", path))
        self._scheduler = scheduler
        self._clock = clock
        self._codec = msgspec.msgpack.Encoder()
        self._write(header_of(scheduler))
        scheduler.call_soon = lambda method, *arguments: getattr(self, method)(*arguments)

    def __getattr__(self, name: str) -> Any:
        """Return a scheduler's attribute; calls that change its state are recorded."""
        found = getattr(self._scheduler, name)
        kind = RECORDED.get(name)
        if kind is None:
            return found

        def recorded(*arguments: Any) -> Any:
            answer = found(*arguments)
            self._record(kind, arguments if len(arguments) > 1 else next(iter(arguments), None))
            return answer

        return recorded

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "call_soon":
            self._scheduler.call_soon = value
        else:
            object.__setattr__(self, name, value)

    def schedule(self) -> StepPlan | None:
        """Return the next plan; the count of calls records those without a plan."""
        plan: StepPlan | None = self._scheduler.schedule()
        if plan is not None:
            self._record("plan", plan)
        return plan

    def close(self) -> None:
        """Flush and close the file, and close the scheduler; safe to call twice."""
        self._close_file()
        self._scheduler.close()

    def _record(self, kind: str, data: object) -> None:
        raw = msgspec.Raw(self._codec.encode(data))
        self._write(Frame(kind, self._clock(), self._scheduler.num_schedules, raw))

    def _write(self, frame: object) -> None:
        if self._file is None:
            return
        data = self._codec.encode(frame)
        try:
            self._file.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)
        except OSError:
            self._close_file()

    def _close_file(self) -> None:
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:  # the disk is full or slow
            log.error("--journal ends here, requests go on: %s", error)
        self._file = None
