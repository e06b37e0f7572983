"""An extension that loads external keys, sometimes wrong ones: waits, reservations, failures.

Its decisions depend on the request and on the number of calls, so a replay decides alike.
"""

from __future__ import annotations

import json
import random
from typing import Any

from core.contracts.scheduling import MayStart
from core.testing.invariants import check_scheduler
from tests.core.scheduler.fake_worker import Engine, Sequence, hash_of


class Connector:
    """Parks requests at every other call, with or without reserved blocks."""

    name = "connector"

    def __init__(
        self, *, wait: float = 0.3, reserve: float = 0.4, remote: float = 0.5, fail: float = 0.4
    ) -> None:
        self.odds = (wait, reserve, remote, fail)
        self.scheduler: Any = None
        self.num_calls: dict[str, int] = {}
        self.held: dict[str, list[list[int]]] = {}
        """Reserved blocks that are not loaded yet."""
        self.loaded: dict[str, tuple[int, int, int]] = {}
        """(first position, end, first wrong one) of loads into reserved blocks."""
        self.external: dict[str, tuple[int, int, int, bool]] = {}
        """The same for the next start, and whether the step itself loads it."""
        self.num_recomputes = 0

    def attach(self, scheduler: Any) -> None:
        assert self.scheduler is None
        self.scheduler = scheduler

    def _random(self, request_id: str) -> random.Random:
        return random.Random(f"{request_id} {self.num_calls.get(request_id, 0) // 2}")

    def may_start(self, request: Any) -> bool | MayStart:
        name = request.request_id
        self.num_calls[name] = self.num_calls.get(name, 0) + 1
        if self.num_calls[name] % 2 == 0:
            return True
        wait, reserve, *_ = self.odds
        dice = self._random(name).random()
        if dice < wait:
            return False
        if dice < wait + reserve:
            if name not in self.loaded:
                self.num_calls[name] -= 1  # called again until blocks are free
            return MayStart.RESERVE
        return True

    def reserved(self, request: Any, tables: list[list[int]], num_local: int) -> None:
        self.num_calls[request.request_id] = self.num_calls.get(request.request_id, 0) + 1
        self.held[request.request_id] = tables
        self.loaded[request.request_id] = self._extent(
            request.request_id, num_local, request.num_tokens
        )

    def load(self, engine: Engine, request_id: str) -> None:
        """Load the reserved blocks; the last ones may be wrong."""
        tables = self.held.pop(request_id)
        tokens = engine.tokens(request_id)
        first, end, bad = self.loaded[request_id]
        sequence = Sequence(
            request_id, tokens, tables, hash_of(engine.requests[request_id].cache_salt)
        )
        engine.worker.load(sequence, tables, range(first, end), bad, min(end, len(tokens) - 1))

    def _extent(self, request_id: str, first: int, total: int) -> tuple[int, int, int]:
        rng = self._random(request_id)
        _, _, remote, fail = self.odds
        rng.random()
        if rng.random() >= remote or first >= total:
            return first, first, first
        end = rng.randint(first, total)
        return first, end, rng.randint(first, end) if rng.random() < fail else end

    def cached_tokens(self, request: Any, num_local: int) -> int:
        name = request.request_id
        first, end, bad = self.loaded.get(name) or self._extent(name, num_local, request.num_tokens)
        assert first == num_local, "the local hit has changed since the load"
        self.external[name] = (first, end, bad, name not in self.loaded)
        return end - first

    def planned(self, plan: Any) -> bytes | None:
        new = {
            row.request_id: self.external[row.request_id]
            for row in plan.new
            if row.request_id in self.external
        }
        for row in plan.new:
            self.external.pop(row.request_id, None)
            self.loaded.pop(row.request_id, None)
        return json.dumps(new).encode() if new else None

    def result(self, payload: bytes) -> None:
        for request_id, position in json.loads(payload).items():
            self.num_recomputes += 1
            # A failed load is not tried again.
            self.num_calls[request_id] = self.num_calls.get(request_id, 0) + 2
            self.scheduler.recompute(request_id, position)
            check_scheduler(self.scheduler)

    def finished(self, request: Any) -> bool:
        self.held.pop(request.request_id, None)
        return False


def wake(engine: Engine, connector: Connector, request_id: str) -> None:
    """Complete the wait of a parked request."""
    if request_id in connector.held:
        connector.load(engine, request_id)
    engine.wake(request_id)


def run(engine: Engine, connector: Connector, max_steps: int = 10_000) -> None:
    """Step until all requests have ended; wake a parked one only when nothing else runs."""
    for _ in range(max_steps):
        if not (engine.scheduler.has_work or engine.scheduler.num_parked):
            return
        engine.step()
        if not engine.worker.queue and engine.schedule() is None:
            parked = engine.scheduler._life.parked
            assert parked or not engine.scheduler.has_work, "nothing runs and nothing is parked"
            for request_id in list(parked)[:1]:
                wake(engine, connector, request_id)
    raise AssertionError("the engine does not come to an end")
