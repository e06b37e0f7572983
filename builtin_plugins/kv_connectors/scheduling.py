"""The scheduler half: what the scheduler, the cache and the worker halves say to a tier, and what
begins with each step.

A block is stored once the step that computed it has returned (`storing`). A request whose beginning
is in the store waits until all of it is there and right (`loading`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from builtin_plugins.kv_connectors.exchange import Exchange
from builtin_plugins.kv_connectors.holdings import Holdings
from builtin_plugins.kv_connectors.loading import Loading
from builtin_plugins.kv_connectors.looking import Looking
from builtin_plugins.kv_connectors.messages import (
    NAME,
    Found,
    Late,
    Looked,
    Opened,
    Orders,
    Refilled,
    Told,
)
from builtin_plugins.kv_connectors.moves import TOO_LATE, Move, Moves
from builtin_plugins.kv_connectors.storing import Storing
from builtin_plugins.kv_connectors.trouble import Trouble
from builtin_plugins.kv_connectors.watched import WatchedDirectory
from core.api import BlockKey, KVConnector, KVTransferConfig
from core.contracts.kv_watchers import Watcher
from core.step import StepPlan

_encode = msgspec.msgpack.Encoder().encode
_told = msgspec.msgpack.Decoder(Told).decode


@dataclass(frozen=True, slots=True)
class Counts:
    """What has happened since the start, in blocks."""

    stored: int
    loaded: int
    unstored: int
    """Whose writing failed."""
    unloaded: int
    """Whose reading failed, or that were not what was written."""
    evicted: int


class Traffic:
    """A tier behind the cache: the blocks of one connector."""

    def __init__(
        self,
        connector: KVConnector,
        settings: KVTransferConfig,
        tensor: int,
        num_ranks: int,
        watchers: Sequence[Watcher] = (),
        *,
        name: str = NAME,
        above: Sequence[Traffic] = (),
    ) -> None:
        """`tensor`: ranks that split every layer, of all `num_ranks`. `watchers`: told of what the
        tier has and has lost.

        `above`: tiers that are asked before this one.
        """
        self.name = name
        self._above = above
        self._connector = connector
        self._settings = settings
        self._tensor = tensor
        self._num_ranks = num_ranks
        self._watchers = watchers
        self._loads_any = settings.kv_role != "kv_producer"
        self._stores_any = settings.kv_role != "kv_consumer"
        self._reading, self._writing = (
            Trouble(settings.kv_connector, verb) for verb in ("reading", "writing")
        )
        self._exchange: Exchange | None = None
        """None: its connector knows no other engine."""
        self._looking: Looking | None = None
        """None: what its stores have is known without asking, or nobody wants to know."""
        self._greeted = False
        """The other halves were told to open their stores."""
        self._opened: set[int] = set()
        """Ranks whose stores can be asked."""
        self._early: list[str] = []
        """Requests that wait for that."""
        self._version = 0
        """Of the weights."""

    def attach(self, scheduler: Any) -> None:
        """Become a tier of the scheduler's cache."""
        self._scheduler = scheduler
        kv = scheduler.kv
        self._kv = kv
        layout = kv.layout
        self._sizes = [group.block_size for group in layout.groups]
        self._link = layout.hash_block_size
        block_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        own: Any = self._connector.directory(layout, self._tensor)
        medium = getattr(self._connector, "medium", self._settings.kv_connector)
        watched = WatchedDirectory(own, medium, self._watchers) if self._watchers else own
        self._holdings = holdings = Holdings(watched, self._num_ranks)
        if hasattr(own, "expect"):
            self._exchange = Exchange(own, self._settings.kv_connector, scheduler, holdings.name)
        self._moves = moves = Moves(self.name, block_bytes, self._num_ranks)
        self._storing = Storing(scheduler, holdings, moves, self._writing)
        if self._loads_any and getattr(self._connector, "looks", False):
            trouble = Trouble(self._settings.kv_connector, "looking for blocks")
            self._looking = Looking(scheduler, holdings, trouble, self._num_ranks)
        recomputes = self._settings.kv_load_failure_policy == "recompute"
        self._loading = Loading(
            scheduler, holdings, moves, self._reading, self._exchange, recomputes=recomputes
        )
        kv.watch(self._offered, self._forgotten)
        kv.add_tier(self.holds)

    def info(self) -> Mapping[str, str]:
        """Return the labels by which the tier is shown: whether it works, and if not, the kind of
        error.
        """
        degraded = self._degraded
        state = "degraded" if degraded else "ready" if self._is_open else "opening"
        return {
            "connector": self._settings.kv_connector,
            "state": state,
            "reason": degraded[0].shown if degraded else "",
        }

    @property
    def _degraded(self) -> list[Trouble]:
        others = [] if self._exchange is None else [*self._exchange.troubles]
        if self._looking is not None:
            others.append(self._looking.trouble)
        return [each for each in (self._reading, self._writing, *others) if each.is_degraded]

    def numbers(self) -> Mapping[str, float]:
        """Return what is counted, by metric."""
        counts = {
            f"kv_connector_{name}_blocks_total": float(value)
            for name, value in asdict(self.counts).items()
        }
        directory = self._holdings.directory
        return counts | {
            "kv_connector_hit_tokens_total": self._loading.hit_tokens,
            "kv_connector_degraded": bool(self._degraded),
            "kv_connector_bytes": directory.num_bytes,
            "kv_connector_limit_bytes": directory.most_bytes,
        }

    @property
    def counts(self) -> Counts:
        """What has happened."""
        storing = self._storing
        loading = self._loading
        return Counts(
            stored=storing.num_stored,
            loaded=loading.num_loaded,
            unstored=storing.num_unstored,
            unloaded=loading.num_unloaded,
            evicted=self._holdings.num_evicted,
        )

    @property
    def _is_open(self) -> bool:
        return len(self._opened) == self._num_ranks

    # --- what the cache says

    def holds(self, group: int, key: bytes) -> bool:
        """Say whether a block can be had from this tier now."""
        return self._loads_any and self._is_open and self._loading.holds(group, key)

    def _offered(self, lease: Any, tokens: Any, start: int) -> None:
        if self._stores_any:
            self._storing.offered(lease, start)

    def _forgotten(self, group: int, key: bytes, block: int, right: bool) -> None:
        """What the cache loses before it was stored is lost; what it does not trust is not to be
        had here either.
        """
        self._storing.fresh.pop(BlockKey(group, key), None)
        if not right:
            name = self._holdings.name(group, key)
            self._moves.distrust(name)
            if self._holdings.directory.holds(name):
                self._holdings.lose(name)

    # --- requests

    def arrived(self, request: Any) -> None:
        """Note what another engine has for it, and have the stores asked where only they know."""
        if self._exchange is not None and self._loads_any:
            self._exchange.arrived(request)
        if self._looking is not None:
            self._looking.arrived(request)

    def may_start(self, request: Any) -> bool:
        """Say whether it waits for blocks.

        Raises for one whose blocks did not come, where that is wanted.
        """
        may_start = self._loading.may_start(request.request_id)
        if self._loads_any and not self._is_open:
            self._early.append(request.request_id)
            return False
        return may_start and (self._looking is None or not self._looking.waits(request.request_id))

    def load(self, request: Any, loads: Sequence[Any]) -> bool:
        """Have blocks read that no tier above has; the request waits for them."""
        wanted = [
            each
            for each in loads
            if self.holds(each.group, each.key)
            and not any(tier.holds(each.group, each.key) for tier in self._above)
        ]
        if wanted:
            self._loading.park(request, wanted)
        return not wanted

    def finished(self, request: Any) -> bool:
        """Its beginning was asked for again, if it was found: that is kept longer, and the first of
        it the longest.
        """
        keeps = self._exchange is not None and self._exchange.finished(request, self._storing.fresh)
        self._loading.forget(request.request_id)
        if self._looking is not None:
            self._looking.forget(request.request_id)
        for group, size in enumerate(self._sizes):
            links = size // self._link
            for place in reversed(
                range(min(request.num_cached, len(request.keys) * self._link) // size)
            ):
                self._holdings.directory.used(
                    self._holdings.name(group, request.keys[(place + 1) * links - 1])
                )
        return keeps

    # --- steps

    def pending(self) -> bool:
        """Say whether a plan without rows would carry anything."""
        if not self._is_open:
            return not self._greeted
        has_room = self._moves.num_bytes < self._settings.most_bytes_under_way
        if self._looking is not None and self._looking.unasked:
            return True
        if self._holdings.drops_any or (self._loading.waits_any and has_room):
            return True
        if not self._writing.may_ask(self._kv.issued + 1):
            return self._exchange is not None and self._exchange.keeps_any
        return bool(self._storing.fresh) and has_room

    def planned(self, plan: StepPlan) -> bytes | None:
        """Begin as much as may move beside the step: what requests wait for, then what is to be
        stored.
        """
        if not self._is_open:
            greeting = not self._greeted
            self._greeted = True
            return _encode(Orders()) if greeting else None
        most_bytes = self._settings.most_bytes_under_way
        computes = bool(plan.steady or plan.rows)
        if computes and self._loads_any:  # who only prefills keeps nobody's stream waiting
            most_bytes = min(most_bytes, self._moves.num_bytes + self._settings.step_bytes)
        reads = self._loading.begin(most_bytes)
        writes = self._storing.begin(plan.step, most_bytes)
        if self._exchange is not None:
            self._exchange.let_go(self._storing.fresh, writes=self._writing.may_ask(plan.step))
        drops = self._holdings.take_drops()
        looks = [] if self._looking is None else self._looking.take()
        return (
            _encode(Orders(reads, writes, drops, self._version, looks))
            if reads or writes or drops or looks
            else None
        )

    # --- what worker halves say

    def result(self, payload: bytes) -> None:
        """Take what a rank's half tells."""
        told = _told(payload)
        if isinstance(told, Opened):
            self._take_opened(told.rank)
        elif isinstance(told, Found):
            self._holdings.found(told.rank, told.keys)
        elif isinstance(told, Looked):
            if self._looking is not None:
                self._looking.looked(told)
        elif isinstance(told, Late):
            self._take_late(told)
        elif isinstance(told, Refilled):
            self._take_refilled(told)
        else:
            for each in told.ids:
                self._end(
                    self._moves.done(told.rank, each, told.errors.get(each, ""), self._kv.issued)
                )
        if self._loading.waits_any:
            self._loading.give_up()

    def _take_opened(self, rank: int) -> None:
        self._opened.add(rank)
        if self._is_open:
            early = self._early
            self._early = []
            for request_id in early:
                self._scheduler.wake(request_id)

    def _take_refilled(self, told: Refilled) -> None:
        """From here on blocks have other names; the first rank says which."""
        if told.rank == 0:
            self._version = told.version
            self._holdings.rename(told.domain)
            self._storing.fresh.clear()
            self._loading.refilled()

    def _take_late(self, told: Late) -> None:
        """The rank has given these up: nobody waits for them, and their blocks are free as if they
        had failed.
        """
        for move in self._moves.late(told, self._kv.issued):
            if move.load is not None:
                self._loading.late(move.load)
            self._end(self._moves.ended(move.order.id, TOO_LATE, self._kv.issued))
        if self._looking is not None:
            self._looking.late(told)

    def _end(self, move: Move | None) -> None:
        """Do what follows where all ranks are done with a move."""
        if move is None:
            return
        if move.load is None:
            self._storing.ended(move)
        else:
            self._loading.ended(move, move.load)
