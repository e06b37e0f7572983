"""The engines of one kind: which are up, what they are busy with, and which is to be asked next."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from builtin_plugins.commands.route.prefix import Seen
from builtin_plugins.commands.route.upstream import Address, Lost, ask

log = logging.getLogger(__name__)
SLACK: Final = 2
"""So many requests more than the least busy may an engine have that knows the beginning of a
prompt.
"""
FIRST_REST_S = 0.5
LONGEST_REST_S = 30.0
"""An engine that was lost is not asked for so long, doubled each time, unless it says that it is
well.
"""


@dataclass(slots=True, eq=False)
class Engine:
    """One engine as it is known here."""

    address: Address
    seen: Seen = field(default_factory=Seen)
    num_open: int = 0
    num_asked: int = 0
    num_lost: int = 0
    reason: str = ""
    """Why it is not asked; empty: it is."""
    until_s: float = 0.0
    """By the monotonic clock."""
    rest_s: float = FIRST_REST_S
    features: Any = None
    """What it last said of its features, such as a KV connector that is degraded, and why."""

    @property
    def is_up(self) -> bool:
        """Say whether it may be asked now."""
        return not self.reason or time.monotonic() >= self.until_s

    def lost(self, reason: str) -> None:
        """Leave it alone for a while."""
        if not self.reason:
            log.warning("%s; it is left alone until it answers", reason)
            self.seen.clear()
        self.num_lost += 1
        self.reason = reason
        self.until_s = time.monotonic() + self.rest_s
        self.rest_s = min(LONGEST_REST_S, 2 * self.rest_s)

    def well(self) -> None:
        """It answers."""
        if self.reason:
            log.info("%s answers again", self.address.url)
        self.reason = ""
        self.rest_s = FIRST_REST_S

    def shown(self) -> dict[str, Any]:
        """Return what `/health` says of it."""
        return {
            "url": self.address.url,
            "up": self.is_up,
            "reason": self.reason,
            "open": self.num_open,
            "asked": self.num_asked,
            "lost": self.num_lost,
            "features": self.features,
        }

    @contextmanager
    def busy(self, keys: Sequence[bytes]) -> Iterator[None]:
        """Count a request while the context lasts."""
        self.num_open += 1
        self.num_asked += 1
        self.seen.add(keys)
        try:
            yield
        finally:
            self.num_open -= 1


class Engines:
    """Those that are asked for the same."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self.all = [Engine(address) for address in addresses]

    def __bool__(self) -> bool:
        return bool(self.all)

    def choose(self, keys: Sequence[bytes], but: Collection[Engine] = ()) -> Engine | None:
        """Return who knows most of a prompt's beginning among those that are not much busier than
        others; None: nobody is up.
        """
        able = [engine for engine in self.all if engine.is_up and engine not in but]
        return self._best(keys, able) if able else None

    def choose_any(self, keys: Sequence[bytes]) -> Engine:
        """Likewise, but one that was lost rather than none: it may be back."""
        return self.choose(keys) or self._best(keys, self.all)

    @staticmethod
    def _best(keys: Sequence[bytes], able: Sequence[Engine]) -> Engine:
        least = min(engine.num_open for engine in able)
        return max(
            (engine for engine in able if engine.num_open <= least + SLACK),
            key=lambda engine: (engine.seen.match(keys), -engine.num_open, -engine.num_asked),
        )

    async def watch(self, every_s: float) -> None:
        """Ask each for its health, for ever."""
        await asyncio.gather(*(_watch(engine, every_s) for engine in self.all))


async def _watch(engine: Engine, every_s: float) -> None:
    while True:
        try:
            async with (
                asyncio.timeout(every_s + 1.0),
                ask(engine.address, b"GET", b"/health", [], b"", every_s + 1.0) as answer,
            ):
                if answer.status == HTTPStatus.OK:
                    engine.features = _features(await answer.whole())
                    engine.well()
                else:
                    engine.lost(f"{engine.address.url} says that it is not well ({answer.status})")
        except (Lost, TimeoutError) as error:
            engine.lost(str(error) or f"{engine.address.url} does not answer")
        await asyncio.sleep(every_s)


def _features(body: bytes) -> Any:
    """Return what an engine's `/health` says of its features; None where it says nothing."""
    try:
        said = json.loads(body)
    except ValueError:
        return None
    return said.get("features") if isinstance(said, dict) else None
