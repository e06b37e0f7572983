"""Publishes events over ZeroMQ, from a thread of its own, and again to whoever asks for what it has
missed.

A message is (topic, number, batch), numbers counting up from 0 as eight bytes, big-endian. Asked
with a number, the replay socket answers with (number, batch) for each batch from there on that is
still kept, then (-1, nothing).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec
import zmq

from builtin_plugins.features.kv_events.events import Change, Event, EventBatch
from builtin_plugins.features.kv_events.settings import FLAG, Settings
from core.api import ConfigError

log = logging.getLogger(__name__)
END: Final = (-1).to_bytes(8, "big", signed=True)
LINGER_MS: Final = 1000
"""For so long a closed publisher tries to bring its last batches to subscribers."""
RANK: Final = 0
"""Of data parallelism: engines here are alone."""


class Publisher:
    """Takes changes from one thread, and sends those that came meanwhile as one batch."""

    def __init__(self, settings: Settings) -> None:
        """Open the sockets. Raises `ConfigError` naming the endpoint that cannot be had."""
        self._settings = settings
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._events = self._context.socket(zmq.PUB)
        self._events.set_hwm(settings.hwm)
        self._replay = self._context.socket(zmq.ROUTER)
        self._replay.sndhwm = (
            settings.buffer_steps + 1
        )  # an answer fits; who does not read it gets no second one
        binds = (
            settings.endpoint.startswith("ipc://")
            or "*" in settings.endpoint
            or "::" in settings.endpoint
        )
        self._open(
            "endpoint", settings.endpoint, self._events.bind if binds else self._events.connect
        )
        if settings.replay_endpoint is not None:
            self._open("replay_endpoint", settings.replay_endpoint, self._replay.bind)
        self._waiting: deque[Change] = deque()
        self._lost = False
        """Changes came that had no room."""
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=settings.buffer_steps)
        self._next = 0
        self._woken = False
        self._closing = False
        self._wakes, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)

    def start(self, write: Callable[[list[Change]], list[Event]]) -> None:
        """Send from now on what `write` makes of changes."""
        self._write = write
        self._thread.start()

    def send(self, change: Change) -> None:
        """Take a change. Never waits: one that has no room is lost, and subscribers see that."""
        if len(self._waiting) >= self._settings.max_queue_size:
            self._lost = True
            return
        self._waiting.append(change)
        if not self._woken:
            self._woken = True
            os.write(self._wake, b"\0")

    def close(self) -> None:
        """Send what waits, and give the endpoints back; may be called twice."""
        if self._closing:
            return
        self._closing = True
        os.write(self._wake, b"\0")
        if self._thread.ident is not None:
            self._thread.join()
        self._context.destroy(LINGER_MS)
        os.close(self._wake)
        os.close(self._wakes)

    def _open(self, name: str, endpoint: str, how: Callable[[str], object]) -> None:
        try:
            how(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise ConfigError(
                f"{FLAG}.{name} {endpoint}: {error.strerror}; choose another address."
            ) from error

    # --- the thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._replay, zmq.POLLIN)
        poller.register(self._wakes, zmq.POLLIN)
        while not self._closing:
            ready = dict(poller.poll())
            if self._replay in ready:
                self._answer(self._replay.recv_multipart())
            if self._wakes in ready:
                os.read(self._wakes, 2)
                self._woken = False  # first: what comes from here on wakes again
                self._publish()
        self._publish()

    def _publish(self) -> None:
        changes = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if changes:
            batch = msgspec.msgpack.encode(EventBatch(time.time(), self._write(changes), RANK))
            self._kept.append((self._next, batch))
            self._events.send_multipart(
                (self._settings.topic.encode(), self._next.to_bytes(8, "big"), batch)
            )
            self._next += 1
        if self._lost:
            self._lost = False
            self._next += 1  # a number that nobody ever gets
            log.warning(
                "more than %d KV events waited, and some are lost; raise %s.max_queue_size",
                self._settings.max_queue_size,
                FLAG,
            )

    def _answer(self, request: list[bytes]) -> None:
        who, *rest = request
        if len(rest) != 2 or rest[0] or len(rest[1]) != len(END):
            log.debug(
                "a replay was asked for with %d frames; give an empty one and a number of eight "
                "bytes",
                len(rest),
            )
            return
        since = int.from_bytes(rest[1], "big")
        for number, batch in self._kept:
            if number >= since:
                self._replay.send_multipart((who, b"", number.to_bytes(8, "big"), batch))
        self._replay.send_multipart((who, b"", END, b""))
