"""Publishes events over ZeroMQ from its own thread, and replays missed batches on request.

A message is (topic, sequence number, batch). Numbers count up from 0, as 8 bytes, big-endian. A
replay request names a number. The answer is (number, batch) for each retained batch from that
number on, then (-1, empty).
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
"""How long a closed publisher tries to deliver its last batches."""
MAX_REQUEST_BYTES: Final = 1024
"""Largest frame of a peer: a subscription or a replay request. It is disconnected for more."""


class Publisher:
    """Queues changes from one thread, and sends the queued ones as one batch."""

    def __init__(self, settings: Settings, rank: int = 0) -> None:
        """Open the sockets. `rank`: the data-parallel rank in the events.

        Raises `ConfigError` naming an endpoint that cannot be opened.
        """
        self._settings = settings
        self._rank = rank
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._events = self._context.socket(zmq.PUB)
        self._events.set_hwm(settings.hwm)
        self._replay = self._context.socket(zmq.ROUTER)
        # Room for one whole answer. A client that does not read it gets no second one.
        self._replay.sndhwm = settings.buffer_steps + 1
        for each in (self._events, self._replay):
            each.maxmsgsize = MAX_REQUEST_BYTES
        endpoint = settings.endpoint
        binds = endpoint.startswith("ipc://") or "*" in endpoint or "::" in endpoint
        self._open("endpoint", endpoint, self._events.bind if binds else self._events.connect)
        if settings.replay_endpoint is not None:
            self._open("replay_endpoint", settings.replay_endpoint, self._replay.bind)
        self._queue: deque[Change] = deque()
        self._lost = False
        """True if a change found the queue full."""
        self._batches: deque[tuple[int, bytes]] = deque(maxlen=settings.buffer_steps)
        """Batches retained for replays, by sequence number."""
        self._next_number = 0
        self._woken = False
        self._closing = False
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)

    def start(self, to_events: Callable[[list[Change]], list[Event]]) -> None:
        """Start the thread. `to_events`: converts changes to events."""
        self._to_events = to_events
        self._thread.start()

    def send(self, change: Change) -> None:
        """Queue a change. Never blocks: a change that finds the queue full is lost."""
        if len(self._queue) >= self._settings.max_queue_size:
            self._lost = True
            return
        self._queue.append(change)
        if not self._woken:
            self._woken = True
            os.write(self._wake_write, b"\0")

    def close(self) -> None:
        """Send the queued changes and close the endpoints. May be called twice."""
        if self._closing:
            return
        self._closing = True
        os.write(self._wake_write, b"\0")
        if self._thread.ident is not None:
            self._thread.join()
        self._context.destroy(LINGER_MS)
        os.close(self._wake_write)
        os.close(self._wake_read)

    def _open(self, name: str, endpoint: str, open_: Callable[[str], object]) -> None:
        try:
            open_(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise ConfigError(
                f"{FLAG}.{name} {endpoint}: {error.strerror}; choose another address."
            ) from error

    # --- the thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._replay, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        while not self._closing:
            ready = dict(poller.poll())
            if self._replay in ready:
                self._answer(self._replay.recv_multipart())
            if self._wake_read in ready:
                os.read(self._wake_read, 2)
                self._woken = False  # before `_publish`: later changes must wake it again
                self._publish()
        self._publish()

    def _publish(self) -> None:
        changes = [self._queue.popleft() for _ in range(len(self._queue))]
        if changes:
            batch = EventBatch(time.time(), self._to_events(changes), self._rank)
            encoded = msgspec.msgpack.encode(batch)
            number = self._next_number
            self._batches.append((number, encoded))
            self._events.send_multipart(
                (self._settings.topic.encode(), number.to_bytes(8, "big"), encoded)
            )
            self._next_number += 1
        if self._lost:
            self._lost = False
            self._next_number += 1  # subscribers see the gap
            log.warning(
                "the queue of %d KV events was full, and some are lost; raise %s.max_queue_size",
                self._settings.max_queue_size,
                FLAG,
            )

    def _answer(self, request: list[bytes]) -> None:
        client, *rest = request
        if len(rest) != 2 or rest[0] or len(rest[1]) != len(END):
            log.debug(
                "ignored a replay request of %d frames; expected an empty frame and 8 bytes",
                len(rest),
            )
            return
        since = int.from_bytes(rest[1], "big")
        for number, batch in self._batches:
            if number >= since:
                self._replay.send_multipart((client, b"", number.to_bytes(8, "big"), batch))
        self._replay.send_multipart((client, b"", END, b""))
