"""All keepers of a process: who compiles when, what each may cost, and which are kept when nobody
uses them.

A constraint compiles at once, two at a time. What takes longer than constraints do goes on alone,
at the lowest priority, in the order it came: so nobody waits for a neighbour's monster, however
many of them there are.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.features.structured_outputs.handle import Handle, Key, Line, OverBudget, Stage
from builtin_plugins.features.structured_outputs.settings import StructuredOutputsConfig
from core.api import EngineConfig, EngineDead, EngineError, QueueFull, RequestFailed

if TYPE_CHECKING:
    from builtin_plugins.features.structured_outputs.nursery import Nursery

log = logging.getLogger(__name__)

NUM_QUICK: Final = 2
"""Constraints that begin to compile at once."""
QUICK_S: Final = 0.25
"""CPU time of a compilation from which on it goes on alone."""
HUMBLE_S: Final = 0.01
"""CPU time of a mask or a compilation from which on its process works with what others leave."""
PATIENCE_S: Final = 120.0
"""Longest wait for a compilation to begin or to end that others hold up."""
_TICK_S: Final = 0.01
_OPTION: Final = "--structured-outputs-config"


def keepers_of(config: EngineConfig, registry: Any) -> Keepers:
    """Return the keepers of this process."""
    made: Keepers = registry.shared("structured_outputs", lambda: Keepers(config, registry))
    return made


class Keepers:
    """A cache of keepers by constraint.

    Any thread may call it; a thread of its own watches those that take long.
    """

    def __init__(self, config: EngineConfig, registry: Any, nursery: Nursery | None = None) -> None:
        """Without a `nursery`, one is made when the first constraint comes."""
        self.settings = StructuredOutputsConfig.of(config)
        self.heard: Callable[[Line], None] = lambda line: None
        """Called with a line whose mask has come, or that has failed; with `lock` held."""
        self.lock: Final = threading.RLock()
        self.is_here = False
        """Masks are made for a worker of this process."""
        self.num_compiled = 0
        """Constraints that were begun to compile, so far."""
        self._config = config
        self._registry = registry
        self._nursery = nursery
        self._handles: OrderedDict[Key, Handle] = OrderedDict()
        """Those in use and those kept, the longest unused first."""
        self._queue: deque[Handle] = deque()
        self._quick: list[Handle] = []
        self._long: deque[Handle] = deque()
        """The first one compiles, the others begin anew when it has ended."""
        self._watched: set[Handle] = set()
        self._watcher: threading.Thread | None = None
        self._closed = False

    # --- what others ask

    def warm_up(self) -> None:
        """Begin with what the first constraint will need; nothing is waited for."""
        with self.lock:
            if self._nursery is None and not self._closed:
                from builtin_plugins.features.structured_outputs.nursery import (
                    nursery_of,
                )  # lazy: start-up stays quick

                self._nursery = nursery_of(self._config, self._registry)
                self._look_after(None)

    def await_warmth(self) -> None:
        """Wait for what was begun; what fails is told to the first request."""
        while True:
            with self.lock:
                if self._watcher is None:
                    return
            wait_for([], _TICK_S)

    def get(self, key: Key) -> Handle:
        """Return the keeper of a constraint, which may still have to compile it.

        Raises `EngineDead` after `close`.
        """
        with self.lock:
            if self._closed:
                raise EngineDead("the engine was shut down; make a new one.")
            handle = self._handles.get(key)
            if handle is None or handle.stage is Stage.GONE:
                self.warm_up()
                handle = self._handles[key] = Handle(key, self._hear)
                self._queue.append(handle)
                self._look_after(handle)
            self._handles.move_to_end(key)
            return handle

    def check(self, key: Key) -> None:
        """Wait until a backend has taken a constraint. Raises what they say against it."""
        with self.lock:
            handle = self.get(key)
            handle.num_asking += 1
        try:
            handle.checked.result()
        finally:
            with self.lock:
                handle.num_asking -= 1

    def watch(self, handle: Handle) -> None:
        """Hear of what a keeper makes, and hold it to its budget, although nobody waits for it
        here.
        """
        with self.lock:
            self._look_after(handle)

    def drop(self, line: Line) -> None:
        """Forget an output. A keeper that only worked for it stops at once."""
        with self.lock:
            handle = line.handle
            handle.drop(line)
            handle.pump()
            if handle.is_waited_for:
                self._look_after(handle)
            elif not handle.lines:
                self._evict()

    def close(self) -> None:
        """End everything; safe to call twice."""
        with self.lock:
            self._closed = True
            self.heard = lambda line: None
            for handle in list(self._handles.values()):
                handle.end(RequestFailed("the engine was shut down"))
            self._handles.clear()
            if self._nursery is not None:
                self._nursery.close()
                self._nursery = None

    # --- the thread that watches

    def _look_after(self, handle: Handle | None) -> None:
        if handle is not None:
            self._watched.add(handle)
        if self._watcher is None and not self._closed:
            self._watcher = threading.Thread(
                target=self._watch, name="grammar-keepers", daemon=True
            )
            self._watcher.start()

    def _watch(self) -> None:
        while True:
            is_ready = True
            with self.lock:
                try:
                    for handle in [*self._watched]:
                        handle.pump()
                        self._hold_to_budget(handle)
                    is_ready = self._begin_more()
                except OSError:
                    self._give_up(
                        RequestFailed(
                            "structured_outputs: the process of grammars has ended; send it again."
                        )
                    )
                except EngineError as error:
                    self._give_up(error)
                except Exception as error:  # whatever it is, nobody must wait for ever
                    log.exception("keepers of grammars cannot be watched")
                    self._give_up(
                        RequestFailed(f"structured_outputs: {type(error).__name__}: {error}")
                    )
                self._watched = {handle for handle in self._watched if handle.is_waited_for}
                if self._closed or (is_ready and not self._watched):
                    self._watcher = None
                    return
                poll_s = _TICK_S if is_ready else 5 * _TICK_S
                sockets = [number for handle in self._watched if (number := handle.fileno()) >= 0]
            wait_for(sockets, poll_s)

    def _begin_more(self) -> bool:
        """Let constraints compile as far as there is room; say whether keepers can be brought
        forth.
        """
        nursery = self._nursery
        if nursery is None or not nursery.is_ready():
            return nursery is None
        self._quick = [handle for handle in self._quick if handle.stage is Stage.COMPILING]
        while self._queue and len(self._quick) < NUM_QUICK and self._has_room():
            handle = self._queue.popleft()
            if handle.stage is Stage.QUEUED:
                self._quick.append(handle)
                handle.meet(*nursery.bear())
                self.num_compiled += 1
        while self._long and self._long[0].stage > Stage.COMPILING:
            self._long.popleft()
        if self._long and self._long[0].stage is Stage.QUEUED:
            self._long[0].meet(*nursery.bear())
        return True

    def _has_room(self) -> bool:
        """Say whether one more keeper may be started; the longest unused makes place for it."""
        self._evict(spare=1)
        alive = sum(Stage.QUEUED < handle.stage < Stage.GONE for handle in self._handles.values())
        return alive < self.settings.max_constraints

    def _hold_to_budget(self, handle: Handle) -> None:
        settings = self.settings
        used_s = handle.used_s()
        if not (handle.lines or handle.num_asking) and (
            handle.stage < Stage.READY or used_s > HUMBLE_S
        ):
            handle.end(RequestFailed("nobody waits for it any more"))
            self._forget(handle)
            return
        if handle.stage is Stage.COMPILING:
            if used_s > HUMBLE_S:
                handle.be_humble()
            if used_s > settings.compile_timeout_s:
                self._refuse(
                    handle,
                    f"takes more than {settings.compile_timeout_s:g} s of work to compile",
                    "compile_timeout_s",
                )
            elif used_s > QUICK_S and handle in self._quick:
                self._quick.remove(handle)
                if self._long:
                    handle.restart_later()
                self._long.append(handle)
        elif handle.stage is Stage.READY:
            if used_s > HUMBLE_S and handle.is_waited_for:
                handle.be_humble()
            if used_s > settings.mask_budget_s and handle.is_waited_for:
                self._refuse(
                    handle,
                    f"takes more than {settings.mask_budget_s:g} s of work for one token",
                    "mask_budget_s",
                )
        if handle.stage < Stage.READY and time.monotonic() - handle.since_s > PATIENCE_S:
            handle.end(QueueFull(f"{handle.kind}: was not compiled within {PATIENCE_S:g} s, as the "
                                 "server was too busy; "
                                 "send the request again later."))  # fmt: skip
            self._forget(handle)
        elif handle.taken_bytes() > settings.compile_memory_bytes:
            most = f"{settings.compile_memory_bytes / (1 << 20):g} MiB of memory"
            self._refuse(handle, f"takes more than {most}", "compile_memory_bytes")

    def _refuse(self, handle: Handle, what: str, option: str) -> None:
        handle.end(_over_budget(handle, what, option))
        self._forget(handle)

    def _hear(self, line: Line) -> None:
        """Hold an output to what all of its masks may take: the keeper and its other outputs go on."""
        most_s = self.settings.output_budget_s
        if line.error is None and line.spent_s > most_s:
            what = f"takes more than {most_s:g} s of work for the tokens of one output"
            line.error = _over_budget(line.handle, what, "output_budget_s")
        self.heard(line)

    def _forget(self, handle: Handle) -> None:
        if self._handles.get(handle.key) is handle:
            del self._handles[handle.key]

    def _give_up(self, error: EngineError) -> None:
        """Fail all who wait: no keeper can be brought forth. The next constraint is another try."""
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None
        failed = self._handles
        self._handles = OrderedDict()
        for handle in failed.values():
            handle.end(error)

    def _evict(self, spare: int = 0) -> None:
        """End the longest unused beyond the bounds; outputs under way keep theirs."""
        alive = [
            handle for handle in self._handles.values() if Stage.QUEUED < handle.stage < Stage.GONE
        ]
        idle = [handle for handle in alive if handle.stage is Stage.READY and not handle.lines]
        count = len(alive) + spare
        total = sum(handle.memory_bytes for handle in idle)
        for handle in idle:
            if count <= self.settings.max_constraints and total <= self.settings.cache_bytes:
                return
            handle.end(RequestFailed("it was not used for longest"))
            self._forget(handle)
            count = count - 1
            total = total - handle.memory_bytes


def _over_budget(handle: Handle, what: str, option: str) -> OverBudget:
    said = f"{what} ({_OPTION}.{option}); make it simpler: large bounds and what may be read in many ways cost most."
    return OverBudget(handle.kind, said, option)


def wait_for(sockets: list[int], most_s: float) -> None:
    """Wait until something can be read."""
    poll = select.poll()
    for number in sockets:
        poll.register(number, select.POLLIN)
    poll.poll(most_s * 1000)
