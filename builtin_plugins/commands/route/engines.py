"""The engine pool: health, load and prefix affinity."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec

from builtin_plugins.clients.api import Balancer
from builtin_plugins.commands.route.proxy import Address, Lost, call_engine

log = logging.getLogger(__name__)
PIECE_BYTES: Final = 256
PIECE_TOKENS: Final = 64
"""Tokens of a piece, for the balancer: about one for four bytes."""
MAX_PIECES: Final = 4096
"""Maximum pieces of a prompt that are considered."""
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
"""Maximum backoff in seconds of a lost engine; reset by a successful health check."""


def prefix_keys(body: Mapping[str, Any]) -> list[bytes]:
    """Return the keys of the whole pieces of a request's prompt or messages."""
    prompt = body.get("messages") or body.get("prompt") or body.get("input") or ""
    text = prompt.encode() if isinstance(prompt, str) else msgspec.json.encode(prompt)
    facts = [body.get(name) for name in ("model", "cache_salt", "tools", "system")]
    parent = hashlib.blake2b(msgspec.json.encode(facts), digest_size=16).digest()
    keys = []
    for at in range(0, min(len(text), MAX_PIECES * PIECE_BYTES) - PIECE_BYTES + 1, PIECE_BYTES):
        parent = hashlib.blake2b(parent + text[at : at + PIECE_BYTES], digest_size=16).digest()
        keys.append(parent)
    return keys


@dataclass(slots=True, eq=False)
class Engine:
    """The known state of one engine."""

    address: Address
    balancer: Balancer
    """Counts the load of all engines of its role."""
    rank: int
    """Its number in the balancer."""
    num_lost: int = 0
    reason: str = ""
    """Why it is not used; empty: it is."""
    until_s: float = 0.0
    """End of the backoff, monotonic clock."""
    backoff_s: float = FIRST_BACKOFF_S
    features: Any = None
    """Last reported feature states, such as a degraded KV connector."""

    @property
    def is_up(self) -> bool:
        """Return whether it can be used now."""
        return not self.reason or time.monotonic() >= self.until_s

    def mark_lost(self, reason: str) -> None:
        """Start a backoff."""
        if not self.reason:
            log.warning("%s; no requests until its next health check", reason)
            self.balancer.restarted(self.rank)
        self.num_lost += 1
        self.reason = reason
        self.until_s = time.monotonic() + self.backoff_s
        self.backoff_s = min(MAX_BACKOFF_S, 2 * self.backoff_s)

    def mark_healthy(self) -> None:
        """Mark it healthy."""
        if self.reason:
            log.info("%s answers again", self.address.url)
        self.reason = ""
        self.backoff_s = FIRST_BACKOFF_S

    def to_json(self) -> dict[str, Any]:
        """Return its entry in `/health`."""
        load = self.balancer.loads[self.rank]
        return {
            "url": self.address.url,
            "up": self.is_up,
            "reason": self.reason,
            "open": load.num_open,
            "requests": load.num_requests,
            "lost": self.num_lost,
            "features": self.features,
        }

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count a request during the context."""
        self.balancer.opened(self.rank)
        try:
            yield
        finally:
            self.balancer.closed(self.rank)

    def has_computed(self, keys: Sequence[bytes]) -> None:
        """Remember the prefix keys of a prompt that it has computed."""
        self.balancer.loads[self.rank].cached.add(keys)


class Engines:
    """Engines with the same role."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._balancer = Balancer(len(addresses))
        self.all = [Engine(each, self._balancer, rank) for rank, each in enumerate(addresses)]

    def __bool__(self) -> bool:
        return bool(self.all)

    def choose(self, keys: Sequence[bytes], excluded: Collection[Engine] = ()) -> Engine | None:
        """Return the engine of least cost, as the balancer of engines counts it; None: none is
        up.
        """
        available = [engine for engine in self.all if engine.is_up and engine not in excluded]
        return self._cheapest(keys, available) if available else None

    def choose_any(self, keys: Sequence[bytes]) -> Engine:
        """Like `choose`, but return a lost engine rather than None."""
        return self.choose(keys) or self._cheapest(keys, self.all)

    def _cheapest(self, keys: Sequence[bytes], available: Sequence[Engine]) -> Engine:
        ranks = [engine.rank for engine in available]
        num_tokens = len(keys) * PIECE_TOKENS
        return self.all[self._balancer.choose(ranks, keys, PIECE_TOKENS, num_tokens)]

    async def watch(self, every_s: float) -> None:
        """Check the health of each engine periodically."""
        await asyncio.gather(*(_watch(engine, every_s) for engine in self.all))


async def _watch(engine: Engine, every_s: float) -> None:
    while True:
        try:
            async with (
                asyncio.timeout(every_s + 1.0),
                call_engine(engine.address, b"GET", b"/health", [], b"", every_s + 1.0) as answer,
            ):
                if answer.status == HTTPStatus.OK:
                    engine.features = _features(await answer.whole())
                    engine.mark_healthy()
                else:
                    engine.mark_lost(f"{engine.address.url} reports status {answer.status}")
        except (Lost, TimeoutError) as error:
            engine.mark_lost(str(error) or f"{engine.address.url} does not answer")
        await asyncio.sleep(every_s)


def _features(body: bytes) -> Any:
    """Return the feature states in an engine's `/health`; None if there are none."""
    try:
        health = json.loads(body)
    except ValueError:
        return None
    return health.get("features") if isinstance(health, dict) else None
