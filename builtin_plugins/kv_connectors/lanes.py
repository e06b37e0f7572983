"""Threads that do orders one after the other, beside the steps."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from builtin_plugins.kv_connectors.messages import Look, Order
from core.contracts.threads import step_aside

T = TypeVar("T", Order, Look)


@dataclass(slots=True, eq=False)
class Batch(Generic[T]):
    """Orders that came together and are reported together."""

    orders: Sequence[T]
    since_s: float
    """By the monotonic clock."""
    before: Callable[[], None] = lambda: None
    """Done before the first of them."""
    is_late: bool = False
    """Whoever gave the orders was told that nothing of them touches the cache any more."""


Claim = Callable[[], AbstractContextManager[None]]
"""Gives a context in which an order may touch the cache. Raises `GivenUp`."""


class GivenUp(Exception):
    """It was too late."""


class Lane(Generic[T]):
    """One thread.

    `work` does one order; `done` is told of a batch, with what `work` raised by order.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[T, Claim], None],
        done: Callable[[Sequence[T], dict[int, str]], None],
    ) -> None:
        self._work: Callable[[T, Claim], None] = work
        self._done: Callable[[Sequence[T], dict[int, str]], None] = done
        self._queue: queue.SimpleQueue[Batch[T] | None] = queue.SimpleQueue()
        self._waiting: dict[Batch[T], None] = {}
        self._lock = threading.Lock()
        self._touching = threading.Lock()
        """Held while an order touches the cache, and to give orders up."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, orders: Sequence[T], before: Callable[[], None] = lambda: None) -> None:
        """Have a batch done behind those before it."""
        batch = Batch(orders, time.monotonic(), before)
        with self._lock:
            self._waiting[batch] = None
        self._queue.put(batch)

    def late(self, timeout_s: float) -> list[int]:
        """Return, once each, the orders that have waited for longer: they are given up, and touch
        the cache no more.
        """
        with self._lock:
            found = [
                b
                for b in self._waiting
                if not b.is_late and time.monotonic() - b.since_s > timeout_s
            ]
        with self._touching:
            for batch in found:
                batch.is_late = True
        return [order.id for batch in found for order in batch.orders]

    def close(self, timeout_s: float) -> bool:
        """Do what there is for so long, then leave out the rest; say whether the thread has ended."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        self._closed.set()
        return not self._thread.is_alive()

    @contextmanager
    def _claim(self, batch: Batch[T]) -> Iterator[None]:
        with self._touching:
            if batch.is_late:
                raise GivenUp("it took longer than timeout_s")
            yield

    def _run(self) -> None:
        step_aside()
        while (batch := self._queue.get()) is not None and not self._closed.is_set():
            errors: dict[int, str] = {}
            batch.before()
            for order in batch.orders:
                if self._closed.is_set():
                    return
                try:
                    with self._claim(batch):
                        pass  # it is too late to begin
                    self._work(order, partial(self._claim, batch))
                except Exception as error:  # noqa: BLE001 - stores may raise anything; the block counts as lost
                    errors[order.id] = f"{type(error).__name__}: {error}"[:200]
            with self._lock:
                del self._waiting[batch]
            self._done(batch.orders, errors)
