"""The client of several engines: routes requests, and moves those of a dead engine to others.

Each engine is supervised like a single one. When it dies, requests that cannot be the cause go on
in the other engines at once; those under suspicion wait for its restart and are tried there alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from builtin_plugins.clients.balancing import Balancer
from builtin_plugins.clients.binding import device_environment
from builtin_plugins.clients.moved import with_previous_engine
from builtin_plugins.clients.process.engine_calls import EngineCalls
from builtin_plugins.clients.process.request_tracker import OpenRequest
from builtin_plugins.clients.process.supervised import Supervised
from builtin_plugins.clients.ranks import (
    BACKEND,
    MP,
    RANK,
    SIZE_LOCAL,
    local_ranks,
    ranks_here,
)
from builtin_plugins.clients.reading_calls import reading_calls
from builtin_plugins.launchers.api import OPTION, is_local
from builtin_plugins.platforms.api import usable_cores
from core.api import ConfigError, EngineConfig, EngineDead, EngineError, Registry
from core.api.execution import CallAnswer, EngineRequest, RequestDelta, StepOutputs
from core.api.kv import chain_root, extend_chain, span_extra_keys
from core.api.serving import EngineStatus, Listener, Running
from core.api.telemetry import StepStats

log = logging.getLogger(__name__)

KEY_TOKENS: Final = 64
"""Tokens per prefix key, at least: fewer would cost more time per request than they find."""


@dataclass(slots=True, eq=False)
class Engine:
    """One engine."""

    index: int
    """Number among the engines of this server."""
    rank: int
    """Number among those of all servers."""
    supervised: Supervised = field(init=False)

    @property
    def is_ready(self) -> bool:
        """Return whether it computes requests."""
        return self.supervised.status().state in ("ready", "stalled")

    @property
    def is_dead(self) -> bool:
        """Return whether it has ended for good."""
        return self.supervised.status().state == "dead"


@dataclass(slots=True, eq=False)
class Routed:
    """An open sequence."""

    engine: Engine
    keys: Sequence[bytes]
    """Prefix keys of its prompt, until its first token."""


class DataParallelClient:
    """Talks to `--data-parallel-size` engine processes."""

    def __init__(self, config: EngineConfig, registry: Registry, listener: Listener) -> None:
        """Start all processes; `wait` until they are ready."""
        ranks = local_ranks(config)
        self._first_rank = ranks[0]
        self._options = config.options
        self._registry = registry
        self._listener = listener
        self._lock = threading.RLock()
        """Guards routes and loads; held for no call of an engine."""
        self._observing = threading.Lock()
        """Statistics of all engines go to the metric sinks one after the other."""
        self._routed: dict[str, Routed] = {}
        self._waiting: dict[str, Routed] = {}
        """Sequences without a first token."""
        self.engines = [Engine(index, rank) for index, rank in enumerate(ranks)]
        self._balancer = Balancer(len(ranks))
        shared = _share(config)
        for engine in self.engines:
            engine.supervised = Supervised(
                _of_rank(shared, engine.rank),
                registry,
                self._listener_of(engine),
                name=f"engine {engine.rank}",
                rank=engine.rank,
                on_loss=partial(self._move, engine),
                environment=device_environment(shared, engine.rank),
            )

    def wait(self) -> Running:
        """Wait until every engine is ready. Raises the error of the first failed start."""
        running = [engine.supervised.wait() for engine in self.engines]
        block = running[0].config.cache.block_size or 1
        self._key_tokens = block * -(-KEY_TOKENS // block)
        for engine in self.engines:
            for request_id in engine.supervised.unclaimed:
                self._route(engine, request_id, ())
        config = running[0].config
        options = {**config.options, RANK: self._options.get(RANK)}
        return replace(running[0], config=replace(config, options=options))

    # --- calls

    def add(self, requests: Sequence[EngineRequest], *, resumed: bool = False) -> Future[Any]:
        """Queue the sequences of one request at the engine of least cost."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # a client that leaves aborts its request
        self._add(requests, future, resumed=resumed)
        return future

    def _add(
        self, requests: Sequence[EngineRequest], future: Future[Any], *, resumed: bool
    ) -> None:
        with self._lock:
            known = self._routed.get(requests[0].request_id)
            keys = self._keys(requests[0])
            engine = known.engine if known is not None else self._choose(requests[0], keys)
            for request in requests:
                self._route(engine, request.request_id, keys)

        def accepted(done: Future[Any]) -> None:
            error = done.exception()
            if error is not None:
                self._forget(request.request_id for request in requests)
            may_move = self._living() and RANK not in requests[0].features
            if isinstance(error, EngineDead) and may_move:
                self._add(requests, future, resumed=resumed)
            elif error is not None:
                future.set_exception(error)
            else:
                if known is not None:  # its engine has started it for an earlier server
                    ids = [request.request_id for request in requests]
                    self._listener.started(ids, engine.rank)
                future.set_result(done.result())

        engine.supervised.add(requests, resumed=resumed).add_done_callback(accepted)

    def abort(self, request_ids: Sequence[str]) -> Future[list[RequestDelta]]:
        """Abort requests in any state."""
        by_engine: dict[Engine, list[str]] = {}
        with self._lock:
            for request_id in request_ids:
                routed = self._routed.get(request_id)
                if routed is not None:
                    by_engine.setdefault(routed.engine, []).append(request_id)
            self._forget(request_ids)
        futures = [engine.supervised.abort(ids) for engine, ids in by_engine.items()]
        return _when_all(futures, lambda: [d for future in futures for d in future.result()])

    def call(self, name: str, data: bytes = b"") -> Future[list[CallAnswer]]:
        """Call a feature in every engine; raises the first error if none has answered.

        Calls that only read do not wait for an engine that is not ready.
        """
        waits = name not in reading_calls(self._registry)
        futures = [
            engine.supervised.call(name, data) if waits or engine.is_ready else _not_ready(engine)
            for engine in self.engines
        ]
        return _when_all(futures, lambda: _answers(futures, self._first_rank))

    def status(self) -> EngineStatus:
        """Return the status of all: ready if one is, with what the others lack as the reason."""
        each = [engine.supervised.status() for engine in self.engines]
        best = next((one for one in each if one.state == "ready"), each[0])
        reasons = [
            f"engine {rank}: {one.state}{f' ({one.reason})' if one.reason else ''}"
            for rank, one in enumerate(each, self._first_rank)
            if one.state != "ready"
        ]
        return EngineStatus(
            best.state,
            "; ".join(reasons),
            heartbeat_age_s=max(one.heartbeat_age_s for one in each),
            restarts=sum(one.restarts for one in each),
            busy_s=max(one.busy_s for one in each),
            server_restarts=best.server_restarts,
            engines=tuple(each),
        )

    def stop(self) -> None:
        """Stop all engines at once, and wait for their end."""
        threads = [
            threading.Thread(target=engine.supervised.stop)
            for engine in self.engines
            if hasattr(engine, "supervised")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # --- routes

    def _choose(self, request: EngineRequest, keys: Sequence[bytes]) -> Engine:
        """Return the engine that the request names, or the one of least cost."""
        if RANK in request.features:
            return self.engines[int(request.features[RANK]) - self._first_rank]
        able = [engine.index for engine in self.engines if engine.is_ready]
        able = able or [engine.index for engine in self._living() or self.engines]
        num_tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
        return self.engines[self._balancer.choose(able, keys, self._key_tokens, num_tokens)]

    def _keys(self, request: EngineRequest) -> list[bytes]:
        """Return the prefix keys of a prompt, as the prefix cache chains them."""
        keys: list[bytes] = []
        tokens = request.prompt_token_ids
        extend_chain(
            keys,
            chain_root("", request.cache_salt, request.cache_domains),
            tokens,
            self._key_tokens,
            len(tokens) // self._key_tokens,
            span_extra_keys(request.spans, self._key_tokens),
        )
        return keys

    def _route(self, engine: Engine, request_id: str, keys: Sequence[bytes]) -> None:
        with self._lock:
            self._forget([request_id])
            self._balancer.opened(engine.index)
            self._routed[request_id] = self._waiting[request_id] = Routed(engine, keys)

    def _forget(self, request_ids: Iterable[str]) -> None:
        with self._lock:
            for request_id in request_ids:
                routed = self._routed.pop(request_id, None)
                self._waiting.pop(request_id, None)
                if routed is not None:
                    self._balancer.closed(routed.engine.index)

    def _living(self) -> list[Engine]:
        return [engine for engine in self.engines if not engine.is_dead]

    # --- deaths, in the thread of an engine's supervisor

    def _move(self, engine: Engine, calls: EngineCalls) -> None:
        """Move the requests of a dead engine that are not under suspicion to the others."""
        with self._lock:
            self._balancer.restarted(engine.index)
        if any(other.is_ready for other in self.engines if other is not engine):
            self._adopt(engine, calls.release())

    def _adopt(self, dead: Engine, entries: Sequence[OpenRequest]) -> None:
        """Distribute requests of a dead engine over the engines that are ready."""
        shares: dict[Engine, list[OpenRequest]] = {}
        for entry in entries:
            entry.request = with_previous_engine(entry.request, dead.rank)
            keys = self._keys(entry.request)
            with self._lock:
                other = self._choose(entry.request, keys)
                self._route(other, entry.request.request_id, keys)
                shares.setdefault(other, []).append(entry)
        for other, share in shares.items():
            log.warning(
                "engine %d goes on with %d requests of a dead engine", other.rank, len(share)
            )
            other.supervised.adopt(share)

    def _died(self, engine: Engine, error: BaseException) -> None:
        """Handle an engine that is not restarted any more."""
        if not self._living():
            self._listener.died(error)
            return
        log.error("engine %d is given up, the others go on: %s", engine.rank, error)
        self._adopt(engine, engine.supervised.release())
        failed = engine.supervised.release(suspects=True)
        deltas = [
            RequestDelta(
                request_id=entry.request.request_id, finish_reason="error", error=str(error)
            )
            for entry in failed
        ]
        self._deliver(engine, StepOutputs(deltas=deltas))

    # --- outputs, in the thread of an engine's supervisor

    def _listener_of(self, engine: Engine) -> Listener:
        observe = self._listener.observe

        def observed(stats: StepStats) -> None:
            stats.engine = engine.rank
            if observe is not None:
                with self._observing:
                    observe(stats)

        return Listener(
            deliver=partial(self._deliver, engine),
            observe=None if observe is None else observed,
            died=partial(self._died, engine),
            started=self._listener.started,
            stage=self._listener.stage if engine.index == 0 else lambda name: None,
        )

    def _deliver(self, engine: Engine, outputs: StepOutputs) -> None:
        if self._waiting:
            self._note_first_tokens(engine, outputs)
        self._forget(d.request_id for d in outputs.deltas if d.finish_reason is not None)
        self._listener.deliver(outputs)

    def _note_first_tokens(self, engine: Engine, outputs: StepOutputs) -> None:
        """Remember the prompts that an engine has computed now."""
        with self._lock:
            ids = [*outputs.request_ids, *(delta.request_id for delta in outputs.deltas)]
            for request_id in ids:
                routed = self._waiting.pop(request_id, None)
                if routed is not None and routed.engine is engine:
                    self._balancer.loads[engine.index].cached.add(routed.keys)


def _share(config: EngineConfig) -> EngineConfig:
    """Return the configuration of each engine: its launcher, and its share of the machine's cores.

    Raises `ConfigError` for two launchers.
    """
    options = {**config.options, SIZE_LOCAL: ranks_here(config)}
    backend = options.get(BACKEND, MP)
    if backend != MP:
        if not is_local(config) and options[OPTION] != backend:
            raise ConfigError(
                f"--data-parallel-backend: got {backend} next to --launcher {options[OPTION]}; "
                "expected one of them. Remove one."
            )
        options[OPTION] = backend
    config = replace(config, options=options)
    if config.device.num_threads is not None:
        return config
    parallel = config.parallel
    ranks = ranks_here(config) * parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    device = replace(config.device, num_threads=max(1, usable_cores() // ranks))
    return replace(config, device=device)


def _of_rank(config: EngineConfig, rank: int) -> EngineConfig:
    """Return the configuration of an engine: files of its own, and its rank for features."""
    options = {**config.options, RANK: rank}
    if options.get("journal") is not None:
        options["journal"] = f"{options['journal']}.engine{rank}"
    return replace(config, options=options)


def _not_ready(engine: Engine) -> Future[list[CallAnswer]]:
    """Return the failed call of an engine that is not ready."""
    future: Future[list[CallAnswer]] = Future()
    future.set_exception(EngineError(f"it is {engine.supervised.status().state}"))
    return future


def _answers(futures: Sequence[Future[list[CallAnswer]]], first_rank: int) -> list[CallAnswer]:
    """Return an answer or an error for each engine. Raises the first error if all have one."""
    errors = [future.exception() for future in futures]
    first = errors[0]
    if first is not None and None not in errors:
        raise first
    found: list[CallAnswer] = []
    for rank, (future, error) in enumerate(zip(futures, errors, strict=True), first_rank):
        if error is None:
            (answer,) = future.result()
            found.append(CallAnswer(scheduler=answer.scheduler, ranks=answer.ranks, engine=rank))
        else:
            died = isinstance(error, EngineDead)
            found.append(CallAnswer(engine=rank, error=str(error), died=died))
    return found


def _when_all(futures: Sequence[Future[Any]], result: Callable[[], Any]) -> Future[Any]:
    """Return a future of `result()`, called when all futures are done."""
    joined: Future[Any] = Future()
    joined.set_running_or_notify_cancel()
    left = len(futures)
    lock = threading.Lock()

    def finish() -> None:
        try:
            joined.set_result(result())
        except Exception as error:  # noqa: BLE001 - passed on
            joined.set_exception(error)

    def one_done(_: Future[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = not left
        if is_last:
            finish()

    for future in futures:
        future.add_done_callback(one_done)
    if not futures:
        finish()
    return joined
