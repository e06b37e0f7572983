"""All grammar processes of one worker: when each compiles, its budgets, and the cache.

A constraint compiles at once, two at a time. A slow compilation continues alone, at the lowest CPU
priority and in order of arrival, so slow grammars never delay other requests.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from builtin_plugins.features.structured_outputs.compile_queue import CompileQueue
from builtin_plugins.features.structured_outputs.frozen_processes import FrozenProcesses
from builtin_plugins.features.structured_outputs.grammar_handle import (
    BudgetExceeded,
    ConstrainedOutput,
    GrammarHandle,
    GrammarLost,
    Key,
    ProcessState,
)
from builtin_plugins.features.structured_outputs.settings import StructuredOutputsConfig
from core.api import EngineConfig, EngineDead, EngineError, QueueFull, Registry, RequestFailed

if TYPE_CHECKING:
    from builtin_plugins.features.structured_outputs.compiler_pool import CompilerPool

log = logging.getLogger(__name__)

LOW_PRIORITY_AFTER_S: Final = 0.01
"""CPU time of a mask or a compilation after which its process gets the lowest priority."""
MAX_COMPILE_WAIT_S: Final = 120.0
"""Maximum wait of a constraint for its compilation to start and end."""
MAX_LOST: Final = 8
"""Grammar processes of one request that may die at one token before it fails."""
_POLL_S: Final = 0.01
_OPTION: Final = "--structured-outputs-config"


def grammar_pool_of(config: EngineConfig, registry: Registry) -> GrammarProcessPool:
    """Return the pool of this process."""
    pool: GrammarProcessPool = registry.shared(
        "structured_outputs", lambda: GrammarProcessPool(config, registry)
    )
    return pool


class GrammarProcessPool:
    """Cache of grammar processes by constraint. Thread-safe; a watcher thread enforces budgets."""

    def __init__(
        self, config: EngineConfig, registry: Registry, compilers: CompilerPool | None = None
    ) -> None:
        """Without `compilers`, they are created for the first constraint."""
        self.settings = StructuredOutputsConfig.of(config)
        self.on_change: Callable[[ConstrainedOutput], None] = lambda output: None
        """Called, with `lock` held, when an output has its mask or has failed."""
        self.lock: Final = threading.RLock()
        self.is_local = False
        """A worker of this process uses the masks."""
        self._config = config
        self._registry = registry
        self._compilers = compilers
        self._is_needed = False
        """Compilers are to be created, by the watcher: no step waits for that or fails with it."""
        self._handles: OrderedDict[Key, GrammarHandle] = OrderedDict()
        """Used and cached processes, least recently used first."""
        self._queue = CompileQueue()
        self._watched: set[GrammarHandle] = set()
        self._watcher: threading.Thread | None = None
        self._frozen = FrozenProcesses()
        self._closed = False

    # --- for users of the pool

    @property
    def num_compiled(self) -> int:
        """Number of compilations started."""
        return self._queue.num_compiled

    def warm_up(self) -> None:
        """Start preparing for the first constraint, without blocking."""
        with self.lock:
            self._is_needed = self._compilers is None
            self._watch(None)

    def get(self, key: Key) -> GrammarHandle:
        """Return the process of a constraint, compiled or not. Raises `EngineDead` if closed."""
        with self.lock:
            if self._closed:
                raise EngineDead("the engine was shut down; make a new one.")
            handle = self._handles.get(key)
            if handle is None or handle.state is ProcessState.GONE:
                self.warm_up()
                handle = GrammarHandle(key, self._on_mask)
                self._handles[key] = handle
                self._queue.add(handle)
                self._watch(handle)
            self._handles.move_to_end(key)
            return handle

    def check(self, key: Key) -> None:
        """Block until a backend accepts a constraint. Raises the rejection."""
        for number in range(1 + MAX_LOST):
            try:
                self._check(key)
            except GrammarLost:  # it may have been killed from outside
                if number == MAX_LOST:
                    raise
            else:
                return

    def _check(self, key: Key) -> None:
        with self.lock:
            handle = self.get(key)
            handle.num_checking += 1
        try:
            handle.checked.result()
        finally:
            with self.lock:
                handle.num_checking -= 1

    def watch(self, handle: GrammarHandle) -> None:
        """Process a handle's messages and enforce its budget in the watcher thread."""
        with self.lock:
            self._watch(handle)

    def drop(self, output: ConstrainedOutput) -> None:
        """Remove an output. A process that only worked for it stops at once."""
        with self.lock:
            handle = output.handle
            handle.drop(output)
            handle.pump()
            if handle.is_busy:
                self._watch(handle)
            elif not handle.outputs:
                self._evict()

    def close(self) -> None:
        """End all processes; safe to call twice."""
        with self.lock:
            self._closed = True
            self.on_change = lambda output: None
            for handle in list(self._handles.values()):
                handle.end(RequestFailed("the engine was shut down"))
            self._handles.clear()
            if self._compilers is not None:
                self._compilers.close()
                self._compilers = None

    # --- the watcher thread

    def _watch(self, handle: GrammarHandle | None) -> None:
        if handle is not None:
            self._watched.add(handle)
        if self._watcher is None and not self._closed:
            self._watcher = threading.Thread(
                target=self._run_watcher, name="grammar-watcher", daemon=True
            )
            self._watcher.start()

    def _run_watcher(self) -> None:
        while True:
            is_ready = True
            with self.lock:
                try:
                    for handle in [*self._watched]:
                        handle.pump()
                        self._enforce_budget(handle)
                    for handle in self._frozen.poll(self._watched):
                        self._replace(handle)
                    is_ready = self._start_compilations()
                except (OSError, EngineDead) as error:
                    log.warning("the fork server of grammar processes is replaced: %s", error)
                    text = "structured_outputs: the fork server has exited; send the request again."
                    is_killed = self._compilers is not None and self._compilers.was_killed()
                    self._fail_all(GrammarLost(text, is_killed=is_killed))
                except EngineError as error:
                    self._fail_all(error)
                except Exception as error:  # no request may wait forever
                    log.exception("the watcher of grammar processes failed")
                    text = f"structured_outputs: {type(error).__name__}: {error}"
                    self._fail_all(RequestFailed(text))
                self._watched = {handle for handle in self._watched if handle.is_busy}
                if self._closed or (is_ready and not self._watched):
                    self._watcher = None
                    return
                poll_s = _POLL_S if is_ready else 5 * _POLL_S
                descriptors = [handle.fileno() for handle in self._watched]
                descriptors = [number for number in descriptors if number >= 0]
            wait_readable(descriptors, poll_s)

    def _start_compilations(self) -> bool:
        """Start compilations within the limits; return whether processes can be started."""
        if self._compilers is None:
            if not self._is_needed:
                return True
            # lazy: start-up stays quick
            from builtin_plugins.features.structured_outputs.compiler_pool import make_compiler_pool

            self._compilers = make_compiler_pool(self._config, self._registry)
            self._is_needed = False
        if not self._compilers.is_ready():
            return False
        self._queue.start(self._compilers, self._has_room)
        return True

    def _has_room(self) -> bool:
        """Return whether another process may start; evicts the least recently used one for it."""
        self._evict(spare=1)
        return len(self._alive()) < self.settings.max_constraints

    def _alive(self) -> list[GrammarHandle]:
        """Return the running processes, least recently used first."""
        states = (ProcessState.COMPILING, ProcessState.READY)
        return [handle for handle in self._handles.values() if handle.state in states]

    def _enforce_budget(self, handle: GrammarHandle) -> None:
        used_s = handle.used_s()
        is_unused = not (handle.outputs or handle.num_checking)
        if is_unused and (handle.state < ProcessState.READY or used_s > LOW_PRIORITY_AFTER_S):
            handle.end(RequestFailed("no request waits for it any more"))
            self._remove(handle)
            return
        is_compiling = handle.state is ProcessState.COMPILING
        if is_compiling or (handle.state is ProcessState.READY and handle.is_busy):
            if used_s > LOW_PRIORITY_AFTER_S:
                handle.lower_priority()
            excess = _excess_work(handle, self.settings, used_s)
            if excess is not None:
                self._reject(handle, *excess)
            elif is_compiling:
                self._queue.note_work(handle, used_s)
        waited_s = time.monotonic() - handle.since_s
        if handle.state < ProcessState.READY and waited_s > MAX_COMPILE_WAIT_S:
            text = f"was not compiled within {MAX_COMPILE_WAIT_S:g} s, as the server is too busy"
            handle.end(QueueFull(f"{handle.kind}: {text}; send the request again later."))
            self._remove(handle)
        elif handle.grown_bytes() > self.settings.compile_memory_bytes:
            limit = f"{self.settings.compile_memory_bytes / (1 << 20):g} MiB of memory"
            self._reject(handle, f"takes more than {limit}", "compile_memory_bytes")

    def _replace(self, handle: GrammarHandle) -> None:
        """End a frozen process; its outputs go on in another.

        Raises `EngineDead` if the fork server has not started it.
        """
        if not handle.pid:
            raise EngineDead("it is frozen")
        log.warning("a grammar process of %s is frozen and is replaced", handle.kind)
        handle.end(handle.lost("is frozen"))
        self._remove(handle)

    def _reject(self, handle: GrammarHandle, what: str, option: str) -> None:
        handle.end(_budget_error(handle, what, option))
        self._remove(handle)

    def _on_mask(self, output: ConstrainedOutput) -> None:
        """Enforce the budget of an output's masks; its process and other outputs continue."""
        limit_s = self.settings.output_budget_s
        if output.error is None and output.spent_s > limit_s:
            what = f"takes more than {limit_s:g} s of work for the tokens of one output"
            output.error = _budget_error(output.handle, what, "output_budget_s")
        self.on_change(output)

    def _remove(self, handle: GrammarHandle) -> None:
        if self._handles.get(handle.key) is handle:
            del self._handles[handle.key]

    def _fail_all(self, error: EngineError) -> None:
        """Fail all requests: the fork server is gone; the next request restarts it."""
        self._is_needed = False
        if self._compilers is not None:
            self._compilers.close()
            self._compilers = None
        failed = self._handles
        self._handles = OrderedDict()
        for handle in failed.values():
            handle.end(error)

    def _evict(self, spare: int = 0) -> None:
        """End the least recently used processes beyond the bounds, except for those in use."""
        alive = self._alive()
        idle = [each for each in alive if each.state is ProcessState.READY and not each.outputs]
        count = len(alive) + spare
        total = sum(handle.memory_bytes for handle in idle)
        for handle in idle:
            if count <= self.settings.max_constraints and total <= self.settings.cache_bytes:
                return
            handle.end(RequestFailed("it was evicted from the cache"))
            self._remove(handle)
            count -= 1
            total -= handle.memory_bytes


def _excess_work(
    handle: GrammarHandle, settings: StructuredOutputsConfig, used_s: float
) -> tuple[str, str] | None:
    """Return what is too much of a busy process's work, and the option that limits it."""
    if handle.state is ProcessState.COMPILING:
        limit_s = settings.compile_timeout_s
        purpose = "to compile"
        option = "compile_timeout_s"
    else:
        limit_s = settings.mask_budget_s
        purpose = "for one token"
        option = "mask_budget_s"
    if used_s <= limit_s:
        return None
    return f"takes more than {limit_s:g} s of work {purpose}", option


def _budget_error(handle: GrammarHandle, what: str, option: str) -> BudgetExceeded:
    hint = "simplify it, above all large bounds and ambiguous patterns"
    return BudgetExceeded(handle.kind, f"{what} ({_OPTION}.{option}); {hint}.", option)


def wait_readable(descriptors: list[int], timeout_s: float) -> None:
    """Block until one of some file descriptors is readable, up to a timeout."""
    poll = select.poll()
    for number in descriptors:
        poll.register(number, select.POLLIN)
    poll.poll(timeout_s * 1000)
