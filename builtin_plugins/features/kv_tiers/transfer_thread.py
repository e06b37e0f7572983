"""Threads that execute transfers one after the other, parallel to the steps."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from builtin_plugins.features.kv_tiers.messages import BlockTransfer, LookupRequest
from builtin_plugins.platforms.api import lower_thread_priority

T = TypeVar("T", BlockTransfer, LookupRequest)


@dataclass(slots=True, eq=False)
class TransferBatch(Generic[T]):
    """Transfers that are queued and reported together."""

    items: Sequence[T]
    queued_s: float
    """Time of queueing, by the monotonic clock."""
    before: Callable[[], None] = lambda: None
    """Called before the first transfer."""
    timed_out: bool = False
    """True once the batch was reported as timed out: it must not touch the cache any more."""


CacheLock = Callable[[], AbstractContextManager[None]]
"""Returns a context in which a transfer may touch the cache. Raises `TransferTimeout`."""


class TransferTimeout(Exception):
    """The transfer's batch has timed out."""


class TransferThread(Generic[T]):
    """One thread with a queue of batches."""

    def __init__(
        self,
        name: str,
        execute: Callable[[T, CacheLock], None],
        on_done: Callable[[Sequence[T], dict[int, str]], None],
    ) -> None:
        """`execute`: runs one transfer. `on_done`: gets a batch, and the errors by transfer id."""
        self._execute: Callable[[T, CacheLock], None] = execute
        self._on_done: Callable[[Sequence[T], dict[int, str]], None] = on_done
        self._queue: queue.SimpleQueue[TransferBatch[T] | None] = queue.SimpleQueue()
        self._waiting: dict[TransferBatch[T], None] = {}
        self._lock = threading.Lock()
        self._cache_lock = threading.Lock()
        """Held while a transfer touches the cache, and to time batches out."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, items: Sequence[T], before: Callable[[], None] = lambda: None) -> None:
        """Queue a batch. `before`: called in the thread before its first transfer."""
        batch = TransferBatch(items, time.monotonic(), before)
        with self._lock:
            self._waiting[batch] = None
        self._queue.put(batch)

    def time_out(self, timeout_s: float) -> list[int]:
        """Time out batches older than `timeout_s`. Return their transfer ids, once each."""
        with self._lock:
            expired = [
                batch
                for batch in self._waiting
                if not batch.timed_out and time.monotonic() - batch.queued_s > timeout_s
            ]
        with self._cache_lock:
            for batch in expired:
                batch.timed_out = True
        return [item.id for batch in expired for item in batch.items]

    def close(self, timeout_s: float) -> bool:
        """Work for up to `timeout_s`, then drop the rest. Return whether the thread has ended."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        self._closed.set()
        return not self._thread.is_alive()

    @contextmanager
    def _locked(self, batch: TransferBatch[T]) -> Iterator[None]:
        with self._cache_lock:
            if batch.timed_out:
                raise TransferTimeout("it took longer than timeout_s")
            yield

    def _run(self) -> None:
        lower_thread_priority()
        while (batch := self._queue.get()) is not None and not self._closed.is_set():
            errors: dict[int, str] = {}
            batch.before()
            for item in batch.items:
                if self._closed.is_set():
                    return
                try:
                    with self._locked(batch):
                        pass  # raises if it is too late to begin
                    self._execute(item, partial(self._locked, batch))
                except Exception as error:  # noqa: BLE001 - any error of a store loses the block
                    errors[item.id] = f"{type(error).__name__}: {error}"[:200]
            with self._lock:
                del self._waiting[batch]
            self._on_done(batch.items, errors)
