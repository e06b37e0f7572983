"""Which models are in memory: loads them on demand, and unloads idle and least recently used ones.

All calls are made in one event loop. A model with open requests is never unloaded: where there is
no room, the least recently used one gets no further requests until its open ones have ended. It is
loaded again if the model that it made room for fails to load.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from builtin_plugins.commands.route.proxy import Address, Answer
from builtin_plugins.commands.serve.models.settings import ModelSettings
from core.api import EngineError, QueueFull

log = logging.getLogger(__name__)

WATCH_S: Final = 0.25
"""Interval of checks for idle and ended models, in seconds."""
FIRST_RETRY_S: Final = 5.0
"""Seconds after which a model that failed to load is tried again; doubled for each failure."""
LONGEST_RETRY_S: Final = 300.0

State = Literal["unloaded", "loading", "loaded", "unloading", "failed"]


class ModelServer(Protocol):
    """The process of a loaded model."""

    address: Address

    @property
    def is_alive(self) -> bool:
        """Return whether it runs."""

    def follow(self) -> None:
        """Follow its output."""

    def get(self, target: bytes, timeout_s: float) -> AbstractAsyncContextManager[Answer]:
        """Fetch one of its pages. Raises `Lost`."""

    async def ready(self) -> None:
        """Wait until it serves. Raises `LoadFailed`."""

    def exit_reason(self) -> str:
        """Return why it has ended."""

    async def stop(self) -> None:
        """End it."""

    def terminate(self) -> None:
        """Request its end."""

    def close(self) -> None:
        """Wait for its end."""


class Starter(Protocol):
    """Starts the processes of models."""

    def start(self, number: int, settings: ModelSettings) -> ModelServer:
        """Start the process of a model."""

    def preserve(self, settings: ModelSettings, process: Any) -> None:
        """Preserve a loaded model, or none, for the next API process."""

    def preserved(self, settings: ModelSettings) -> ModelServer | None:
        """Return a model that the previous API process had loaded."""


@dataclass(slots=True, eq=False)
class Model:
    """One model of the pool."""

    number: int
    settings: ModelSettings
    state: State = "unloaded"
    server: ModelServer | None = None
    num_open: int = 0
    """Open requests."""
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    """Requests that wait until it is loaded."""
    is_held: bool = False
    """It gets no further requests, because it is unloaded when the open ones have ended."""
    reason: str = ""
    """Why it failed to load, or ended."""
    num_loads: int = 0
    num_failures: int = 0
    """Failed loads since the last successful one."""
    retry_at_s: float = 0.0
    requested_at_s: float = 0.0
    """Arrival of the last request, monotonic clock: the order of least recent use."""
    used_at_s: float = 0.0
    """Last time at which it was not idle."""
    replaces: Model | None = None
    """While it is loading: the model that was unloaded for it."""

    @property
    def name(self) -> str:
        """Name in answers."""
        return self.settings.name

    @property
    def process(self) -> ModelServer:
        """The process of a model that is in memory."""
        if self.server is None:
            raise RuntimeError(f"the model {self.name} is not loaded.")
        return self.server

    def to_json(self) -> dict[str, Any]:
        """Return its state for `/health` and `/v1/models`."""
        return {
            "value": self.state,
            "reason": self.reason,
            "open_requests": self.num_open,
            "waiting_requests": len(self.waiting),
            "loads": self.num_loads,
        }


class ModelUnavailable(EngineError):
    """The model failed to load."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelPool:
    """Loads and unloads models."""

    def __init__(
        self, models: Sequence[ModelSettings], starter: Starter, *, max_loaded: int, max_queue: int
    ) -> None:
        self.models = [Model(number, each) for number, each in enumerate(models)]
        self.on_loaded: Callable[[Model], Awaitable[None]] | None = None
        """Called with each model that was loaded, before its first request."""
        self._starter = starter
        self._max_loaded = max_loaded
        self._max_queue = max_queue
        self._queue: list[Model] = []
        """Models with waiting requests that are not being loaded, in order of arrival."""
        self._displaced: list[Model] = []
        """Models unloaded for others that are not being loaded yet, in order."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def started(self) -> None:
        """Continue with the models of the previous API process, and watch all from now on."""
        for model in self.models:
            server = self._starter.preserved(model.settings)
            if server is not None:
                server.follow()
                model.server = server
                model.state = "loaded"
                model.num_loads = 1
                model.used_at_s = time.monotonic()
        self._run(self._watch())

    # --- requests

    @asynccontextmanager
    async def use(self, model: Model) -> AsyncIterator[Address]:
        """Yield the address of a model, which stays loaded within the context.

        Raises `QueueFull`, and `ModelUnavailable` if it cannot be loaded.
        """
        await self._enter(model)
        try:
            yield model.process.address
        finally:
            self._leave(model)

    @contextmanager
    def visit(self, model: Model) -> Iterator[Address]:
        """Yield the address of a loaded model for a call that is no use of it.

        Unlike `use`, it reaches a model that gets no further requests.
        """
        model.num_open += 1
        try:
            yield model.process.address
        finally:
            model.num_open -= 1
            self._advance()

    async def _enter(self, model: Model) -> None:
        """Count a request, once the model is loaded."""
        now_s = time.monotonic()
        if model.state == "failed" and now_s < model.retry_at_s:
            raise _unavailable(model, now_s)
        model.requested_at_s = now_s
        if model.state == "loaded" and not model.is_held:
            model.num_open += 1
            return
        if sum(len(each.waiting) for each in self.models) >= self._max_queue:
            raise QueueFull(
                f"more than {self._max_queue} requests would wait for models to be loaded "
                "(--max-model-queue); send it again later."
            )
        waiter = asyncio.get_running_loop().create_future()
        model.waiting.append(waiter)
        if model.state != "loading" and model not in self._queue:
            self._queue.append(model)
        self._advance()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._leave(model)  # it was let in at the same time
            elif waiter in model.waiting:
                model.waiting.remove(waiter)
                self._advance()
            raise

    def _leave(self, model: Model) -> None:
        model.num_open -= 1
        model.used_at_s = time.monotonic()
        self._advance()

    # --- loading

    def unload(self, model: Model) -> bool:
        """Unload a model; return False while it has open requests."""
        if model.state == "loaded" and not model.num_open:
            self._run(self._unload(model))
        return model.state not in ("loaded", "loading")

    def _advance(self) -> None:
        """Load queued models while there is room, and make room for the others."""
        self._queue = [model for model in self._queue if model.waiting]
        outside = [model for model in self._queue if model.state in ("unloaded", "failed")]
        for model in outside[: max(0, self._max_loaded - self._num_occupied())]:
            self._queue.remove(model)
            model.replaces = self._displaced.pop(0) if self._displaced else None
            self._run(self._load(model))
        leaving = sum(model.state == "unloading" for model in self.models)
        needed = len([m for m in self._queue if m.state != "loaded"]) - leaving
        loaded = [model for model in self.models if model.state == "loaded"]
        loaded.sort(key=lambda model: (model.num_open > 0, model.requested_at_s))
        for place, model in enumerate(loaded):
            model.is_held = place < needed
            if not model.is_held:
                self._let_in(model)
            elif not model.num_open:
                self._displaced.append(model)
                self._run(self._unload(model))

    def _let_in(self, model: Model) -> None:
        """Start the waiting requests of a loaded model."""
        for waiter in model.waiting:
            if not waiter.done():
                model.num_open += 1
                waiter.set_result(None)
        model.waiting.clear()
        if model in self._queue:
            self._queue.remove(model)

    def _load(self, model: Model) -> Awaitable[None]:
        model.state = "loading"
        model.reason = ""
        model.num_loads += 1
        log.info("loading the model %s", model.name)
        return self._loading(model, time.monotonic())

    async def _loading(self, model: Model, since_s: float) -> None:
        try:
            model.server = self._starter.start(model.number, model.settings)
            model.server.follow()
            await model.server.ready()
            if self.on_loaded is not None:
                await self.on_loaded(model)
        except Exception as error:  # fails this model only
            if not isinstance(error, EngineError | OSError):
                log.exception("loading the model %s has failed", model.name)
            if model.server is not None:
                await model.server.stop()
            self._fail(model, str(error))
            self._restore(model.replaces)
        else:
            self._starter.preserve(model.settings, model.server)
            model.state = "loaded"
            model.num_failures = 0
            model.used_at_s = time.monotonic()
            log.info("the model %s is loaded after %.1f s", model.name, model.used_at_s - since_s)
            self._let_in(model)
        model.replaces = None
        self._advance()

    def _restore(self, model: Model | None) -> None:
        """Load a model again that was unloaded for one that failed, if its place is free."""
        if model is None or model.state != "unloaded" or self._is_idle(model):
            return
        if not self._queue and self._num_occupied() < self._max_loaded:
            self._run(self._load(model))

    def _num_occupied(self) -> int:
        """Return the number of models that are in memory, or on their way in or out."""
        return sum(m.state in ("loading", "loaded", "unloading") for m in self.models)

    def _fail(self, model: Model, reason: str) -> None:
        """Fail the waiting requests of a model, and those of the next seconds."""
        pause_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2**model.num_failures)
        model.num_failures += 1
        model.server = None
        model.state = "failed"
        model.reason = reason
        now_s = time.monotonic()
        model.retry_at_s = now_s + pause_s
        log.error("the model %s cannot be loaded: %s", model.name, reason)
        for waiter in model.waiting:
            if not waiter.done():
                waiter.set_exception(_unavailable(model, now_s))
        model.waiting.clear()

    def _unload(self, model: Model) -> Awaitable[None]:
        model.state = "unloading"
        model.is_held = False
        log.info("unloading the model %s", model.name)
        return self._unloading(model)

    async def _unloading(self, model: Model) -> None:
        await model.process.stop()
        self._starter.preserve(model.settings, None)
        model.server = None
        model.state = "unloaded"
        self._advance()

    # --- supervision

    async def _watch(self) -> None:
        """Unload idle models, and notice ended ones."""
        while True:
            await asyncio.sleep(WATCH_S)
            for model in self.models:
                if model.state == "loaded" and model.server is not None:
                    if not model.server.is_alive:
                        model.reason = model.server.exit_reason()
                        log.error("the model %s has ended: %s", model.name, model.reason)
                        self._run(self._unload(model))
                    elif self._is_idle(model):
                        self._run(self._unload(model))

    def _is_idle(self, model: Model) -> bool:
        keep_alive_s = model.settings.keep_alive_s
        idle_s = time.monotonic() - model.used_at_s
        return keep_alive_s is not None and not model.num_open and idle_s >= keep_alive_s

    def shutdown(self) -> None:
        """End all processes; no event loop runs any more."""
        servers = [model.server for model in self.models if model.server is not None]
        for server in servers:
            server.terminate()
        for server in servers:
            server.close()

    def _run(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _unavailable(model: Model, now_s: float) -> ModelUnavailable:
    return ModelUnavailable(
        f"the model {model.name!r} cannot be loaded: {model.reason}",
        max(1, round(model.retry_at_s - now_s)),
    )
