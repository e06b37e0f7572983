"""The scheduler half: which blocks leave, which come back and for whom, and how many move at once.

A block is stored once the step that computed it has returned, and nobody else gets it before it is written. A request whose
beginning is in the store waits with its blocks until all of them are there and right; where one is not, it is computed.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from builtin_plugins.kv_connectors.exchange import Exchange
from builtin_plugins.kv_connectors.messages import (
    NAME,
    OTHER_WEIGHTS,
    Found,
    Late,
    Opened,
    Order,
    Orders,
    Refilled,
    Told,
)
from builtin_plugins.kv_connectors.trouble import Trouble
from builtin_plugins.kv_connectors.watched import WatchedDirectory
from core.api import BlockKey, KVConnector, KVTransferConfig, RequestFailed
from core.contracts.kv_watchers import Watcher
from core.step import StepPlan

_encode = msgspec.msgpack.Encoder().encode
_told = msgspec.msgpack.Decoder(Told).decode


@dataclass(slots=True, eq=False)
class Load:
    """What one request waits for."""

    name: str
    """Under which its blocks are kept, whatever becomes of it."""
    request_id: str | None
    """None: nobody waits for it any more."""
    position: int
    """First token that the cache does not hold."""
    end: int
    """First behind it that nobody holds."""
    num_left: int
    error: str = ""


@dataclass(slots=True, eq=False)
class Move:
    """A block that is to be moved, or is on its way."""

    order: Order
    num_bytes: int
    num_ranks: int
    """Those that are not done with it."""
    load: Load | None
    """None: it is stored."""
    trouble: Trouble
    """Of whoever is asked."""
    error: str = ""
    """What a rank says went wrong."""
    is_late: bool = False
    """A rank has given it up."""
    distrusted: bool = False
    """The cache forgot it meanwhile for what it holds."""


@dataclass(slots=True)
class Counts:
    """What has happened since the start, in blocks."""

    stored: int = 0
    loaded: int = 0
    unstored: int = 0
    """Whose writing failed."""
    unloaded: int = 0
    """Whose reading failed, or that were not what was written."""
    evicted: int = 0


class Traffic:
    """A tier behind the cache: the blocks of one connector."""

    def __init__(
        self,
        connector: KVConnector,
        settings: KVTransferConfig,
        tensor: int,
        num_ranks: int,
        *,
        name: str = NAME,
        above: Sequence[Traffic] = (),
        watchers: Sequence[Watcher] = (),
    ) -> None:
        """`tensor`: ranks that split every layer, of all `num_ranks`; `above`: tiers that are asked before this one; `watchers`:
        told of what it has and has lost."""
        self.name, self._above = name, above
        self._connector, self._settings = connector, settings
        self._tensor, self._num_ranks, self._watchers = tensor, num_ranks, watchers
        self._loads_any = settings.kv_role != "kv_producer"
        self._stores_any = settings.kv_role != "kv_consumer"
        self._directory: Any
        self._reading, self._writing = (Trouble(settings.kv_connector, verb) for verb in ("reading", "writing"))
        self._exchange: Exchange | None = None
        """None: its connector knows no other engine."""
        self.counts = Counts()
        self._greeted = False
        """The other halves were told to open their stores."""
        self._opened: set[int] = set()
        """Ranks whose stores can be asked."""
        self._early: list[str] = []
        """Requests that wait for that."""
        self._found: Counter[BlockKey] = Counter()
        """Blocks that some ranks' stores have of their own accord, and how many do."""
        self._version, self._domain = 0, b""
        """Of the weights, and what tells keys of blocks of these from those of others."""
        self._fresh: dict[BlockKey, int] = {}
        """Blocks to be stored, by the key they are cached under, and the step whose result must be in."""
        self._reads: deque[tuple[Load, Move]] = deque()
        """Blocks to be loaded."""
        self._moves: dict[int, Move] = {}
        """On their way, by order."""
        self._given_up: dict[tuple[int, int], Trouble] = {}
        """By rank and order: whose end, if it comes, says that something works again."""
        self._pinned: Counter[BlockKey] = Counter()
        """Blocks that are, or are to be, read."""
        self._drops: list[BlockKey] = []
        self._loads: dict[str, Load] = {}
        """By request that waits."""
        self._errors: dict[str, str] = {}
        """Of requests that are to fail."""
        self._bytes_under_way = 0
        self._num_orders = 0
        self._hit_tokens = 0
        """That requests began with because of what was brought for them."""

    def attach(self, scheduler: Any) -> None:
        """Become a tier of the scheduler's cache."""
        self._scheduler, kv = scheduler, scheduler.kv
        self._kv, layout = kv, kv.layout
        self._directory = self._connector.directory(layout, self._tensor)
        if self._watchers:
            medium = getattr(self._connector, "medium", self._settings.kv_connector)
            self._directory = WatchedDirectory(self._directory, medium, self._watchers)
        self._block_bytes = [layout.pools[group.pool].block_bytes for group in layout.groups]
        self._sizes = [group.block_size for group in layout.groups]
        self._link = layout.hash_block_size
        if hasattr(self._directory, "expect"):
            self._exchange = Exchange(self._directory, self._settings.kv_connector, scheduler, self._name)
        kv.watch(self._offered, self._forgotten)
        kv.add_tier(self.holds)

    def info(self) -> Mapping[str, str]:
        """Return the labels by which the tier is shown: whether it works, and if not, the kind of error."""
        degraded = self._degraded
        state = "degraded" if degraded else "ready" if self._is_open else "opening"
        return {
            "connector": self._settings.kv_connector,
            "state": state,
            "reason": degraded[0].reason.partition(":")[0] if degraded else "",
        }

    @property
    def _degraded(self) -> list[Trouble]:
        others = () if self._exchange is None else self._exchange.troubles
        return [each for each in (self._reading, self._writing, *others) if each.is_degraded]

    def numbers(self) -> Mapping[str, float]:
        """Return what is counted, by metric."""
        counts = {f"kv_connector_{name}_blocks_total": float(value) for name, value in asdict(self.counts).items()}
        directory = self._directory
        return counts | {
            "kv_connector_hit_tokens_total": self._hit_tokens,
            "kv_connector_degraded": bool(self._degraded),
            "kv_connector_bytes": directory.num_bytes,
            "kv_connector_limit_bytes": directory.most_bytes,
        }

    @property
    def _is_open(self) -> bool:
        return len(self._opened) == self._num_ranks

    # --- what the cache says

    def holds(self, group: int, key: bytes) -> bool:
        """Say whether a block can be had from this tier now."""
        return (
            self._loads_any
            and self._is_open
            and self._directory.holds(name := self._name(group, key))
            and self._trouble(self._source(name)).may_ask(self._kv.issued)
        )

    def _name(self, group: int, key: bytes) -> BlockKey:
        """Return what the store calls a cached block."""
        return BlockKey(group, hashlib.sha256(self._domain + key).digest() if self._domain else key)

    def _source(self, key: BlockKey) -> bytes:
        """Return which other engine has a block; empty: it is here."""
        return b"" if self._exchange is None else self._directory.source(key)

    def _trouble(self, source: bytes) -> Trouble:
        return self._reading if self._exchange is None or not source else self._exchange.trouble(source)

    def _offered(self, lease: Any, tokens: Any, start: int) -> None:
        """Note what a step computes: from behind its result on it can be stored."""
        if not self._stores_any:
            return
        step = self._kv.issued + 1
        for group, (size, table) in enumerate(zip(self._sizes, lease.tables, strict=True)):
            links = size // self._link
            for place in range(start // size, lease.offered // size):
                key = BlockKey(group, lease.keys[(place + 1) * links - 1])
                if table[place] and not self._directory.holds(self._name(*key)):
                    self._fresh.setdefault(key, step)

    def _forgotten(self, group: int, key: bytes, block: int, right: bool) -> None:
        """What the cache loses before it was stored is lost; what it does not trust is not to be had here either."""
        self._fresh.pop(BlockKey(group, key), None)
        if not right:
            name = self._name(group, key)
            for move in self._moves.values():
                move.distrusted |= move.order.key == name
            if self._directory.holds(name):
                self._lose(name)

    def _lose(self, key: BlockKey) -> None:
        self._directory.lost(key)
        self._drops.append(key)

    # --- requests

    def arrived(self, request: Any) -> None:
        """Note what another engine has for it."""
        if self._exchange is not None and self._loads_any:
            self._exchange.arrived(request)

    def may_start(self, request: Any) -> bool:
        """Say whether it waits for blocks. Raises for one whose blocks did not come, where that is wanted."""
        if (error := self._errors.pop(request.request_id, None)) is not None:
            raise RequestFailed(error)
        if self._loads_any and not self._is_open:
            self._early.append(request.request_id)
            return False
        return request.request_id not in self._loads

    def load(self, request: Any, loads: Sequence[Any]) -> bool:
        """Have blocks read; the request waits for them."""
        mine = [
            each
            for each in loads
            if self.holds(each.group, each.key) and not any(tier.holds(each.group, each.key) for tier in self._above)
        ]
        if not mine:
            return True
        self._num_orders += 1
        wanted = {(each.group, each.key) for each in mine}
        load = Load(f"{self.name}/{self._num_orders}", request.request_id, *self._extent(request, wanted), len(mine))
        tables: list[list[int]] = [[] for _ in self._sizes]
        for each in mine:
            tables[each.group].append(each.block)
            move = self._reading_of(self._name(each.group, each.key), each.block, load)
            self._pinned[move.order.key] += 1
            self._reads.append((load, move))
        self._scheduler.keep(load.name, tables)
        self._loads[request.request_id] = load
        return False

    def _extent(self, request: Any, wanted: set[tuple[int, bytes]]) -> tuple[int, int]:
        """Return the first position of blocks that are brought for a request, and that behind the last."""
        ends = [
            (group, (place + 1) * self._link)
            for group in range(len(self._sizes))
            for place, key in enumerate(request.keys)
            if (group, key) in wanted
        ]
        return min(end - self._sizes[group] for group, end in ends), max(end for _, end in ends)

    def _reading_of(self, key: BlockKey, block: int, load: Load) -> Move:
        source = self._source(key)
        return self._move(key, block, load, self._trouble(source), source)

    def _move(self, key: BlockKey, block: int, load: Load | None, trouble: Trouble, source: bytes = b"") -> Move:
        self._num_orders += 1
        order = Order(self._num_orders, key, block, source)
        return Move(order, self._block_bytes[key.group], self._num_ranks, load, trouble)

    def finished(self, request: Any) -> bool:
        """Its beginning was asked for again, if it was found: that is kept longer, and the first of it the longest."""
        self._errors.pop(request.request_id, None)
        keeps = self._exchange is not None and self._exchange.finished(request, self._fresh)
        if (load := self._loads.pop(request.request_id, None)) is not None:
            load.request_id = None  # its blocks are kept until nobody writes to them any more
        for group, size in enumerate(self._sizes):
            links = size // self._link
            for place in reversed(range(min(request.num_cached, len(request.keys) * self._link) // size)):
                self._directory.used(self._name(group, request.keys[(place + 1) * links - 1]))
        return keeps

    # --- steps

    def pending(self) -> bool:
        """Say whether a plan without rows would carry anything."""
        if not self._is_open:
            return not self._greeted
        if self._drops or (self._reads and self._room > 0):
            return True
        if not self._writing.may_ask(self._kv.issued + 1):
            return self._exchange is not None and self._exchange.keeps_any
        return bool(self._fresh) and self._room > 0

    @property
    def _room(self) -> int:
        return self._settings.most_bytes_under_way - self._bytes_under_way

    def planned(self, plan: StepPlan) -> bytes | None:
        """Begin as much as may move beside the step: what requests wait for, then what is to be stored."""
        if not self._is_open:
            greeting, self._greeted = not self._greeted, True
            return _encode(Orders()) if greeting else None
        computes = bool(plan.steady or plan.rows) and self._loads_any  # who only prefills keeps nobody's stream waiting
        budget = min(self._room, self._settings.step_bytes) if computes else self._room
        reads: list[Order] = []
        writes: list[Order] = []
        while self._reads and budget > 0:
            _, move = self._reads.popleft()
            reads.append(self._begin(move))
            budget -= move.num_bytes
        while self._fresh and budget > 0 and self._writing.may_ask(plan.step):
            key = next(iter(self._fresh))
            if self._fresh[key] > self._kv.returned:
                break
            del self._fresh[key]
            if (stored := self._store(key)) is not None:
                writes.append(self._begin(stored))
                budget -= stored.num_bytes
        if self._exchange is not None:
            self._exchange.let_go(self._fresh, writes=self._writing.may_ask(plan.step))
        drops, self._drops = self._drops, []
        return _encode(Orders(reads, writes, drops, self._version)) if reads or writes or drops else None

    def _store(self, key: BlockKey) -> Move | None:
        """Return the move of a block that is still cached and that there is room for, kept until it is done."""
        group, pool = key.group, self._kv.pools[self._kv.layout.groups[key.group].pool]
        block = pool.find(group).get(key.key)
        name = self._name(*key)
        if block is None or not self._admit(name):
            return None
        move = self._move(name, block, None, self._writing)
        tables: list[list[int]] = [[] for _ in self._sizes]
        tables[group].append(block)
        self._scheduler.keep(self._kept(move), tables)
        return move

    def _admit(self, key: BlockKey) -> bool:
        """Have room made for a block; say whether there is any."""
        going = self._directory.admit(key, self._pinned)
        if going is None:
            return False
        self._drops += going
        self.counts.evicted += len(going)
        return True

    def _begin(self, move: Move) -> Order:
        self._moves[move.order.id] = move
        self._bytes_under_way += move.num_bytes
        return move.order

    # --- what worker halves say

    def result(self, payload: bytes) -> None:
        """Take what a rank's half tells."""
        told = _told(payload)
        if isinstance(told, Opened):
            self._opened.add(told.rank)
            if self._is_open:
                early, self._early = self._early, []
                for request_id in early:
                    self._scheduler.wake(request_id)
        elif isinstance(told, Found):
            self._take_found(told.keys)
        elif isinstance(told, Late):
            self._take_late(told)
        elif isinstance(told, Refilled):
            self._take_refilled(told)
        else:
            for each in told.ids:
                error = told.errors.get(each, "")
                if (stuck := self._given_up.pop((told.rank, each), None)) is not None:
                    stuck.ended(each, error, self._kv.issued)
                else:
                    self._take_moved(each, error)
        if self._reads:
            self._give_up()

    def _give_up(self) -> None:
        """Nobody waits for whoever is left alone for a while."""
        reads, self._reads = self._reads, deque()
        for load, move in reads:
            if move.trouble.may_ask(self._kv.issued + 1):
                self._reads.append((load, move))
            else:
                self._read_ended(load, move.order.key, "its connector is left alone for a while")

    def _take_found(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            self._found[key] += 1
            if self._found[key] < self._num_ranks:
                continue
            del self._found[key]
            if not self._directory.holds(key) and self._admit(key):
                self._directory.stored(key)

    def _take_refilled(self, told: Refilled) -> None:
        """From here on blocks have other names; the first rank says which."""
        if told.rank == 0:
            self._version, self._domain = told.version, told.domain
            self._fresh.clear()
            reads, self._reads = self._reads, deque()
            for load, move in reads:
                self._read_ended(load, move.order.key, OTHER_WEIGHTS)

    def _take_late(self, told: Late) -> None:
        """The rank has given these up: nobody waits for them, and their blocks are free as if they had failed."""
        late = [self._moves[each] for each in told.ids if each in self._moves]
        for trouble in dict.fromkeys(move.trouble for move in late):
            trouble.late([move.order.id for move in late if move.trouble is trouble], self._kv.issued)
        for move in late:
            move.is_late = True
            self._given_up[told.rank, move.order.id] = move.trouble
            if move.load is not None:
                move.load.error = move.load.error or "it takes longer than timeout_s"
                self._go_on(move.load)
            self._take_moved(move.order.id, "it takes longer than timeout_s")

    def _take_moved(self, id_: int, error: str) -> None:
        move = self._moves[id_]
        move.error = move.error or error
        move.num_ranks -= 1
        if move.num_ranks:
            return
        del self._moves[id_]
        self._bytes_under_way -= move.num_bytes
        if move.error == OTHER_WEIGHTS:
            move.trouble.dropped(id_)
        elif not move.is_late:  # then its rank is stuck until it says otherwise
            move.trouble.ended(id_, move.error, self._kv.issued)
        error = move.error or ("it is not trusted any more" if move.distrusted else "")
        if move.load is not None:
            self.counts.loaded += not error
            self.counts.unloaded += bool(error)
            self._read_ended(move.load, move.order.key, error)
        else:
            self.counts.stored += not error
            self.counts.unstored += bool(error)
            self._scheduler.release(self._kept(move))
        if error and (move.load is None or move.error != OTHER_WEIGHTS):
            self._lose(move.order.key)
        elif not error and move.load is None:
            self._directory.stored(move.order.key)

    def _read_ended(self, load: Load, key: BlockKey, error: str) -> None:
        self._pinned[key] -= 1
        if not self._pinned[key]:
            del self._pinned[key]
        load.error = load.error or error
        load.num_left -= 1
        if not load.num_left:
            self._go_on(load)
            self._scheduler.release(load.name)

    def _go_on(self, load: Load) -> None:
        """Let the request that waits start: with what was brought, or without it."""
        if load.request_id is None:
            return
        request_id, load.request_id = load.request_id, None
        del self._loads[request_id]
        if not load.error:
            self._hit_tokens += load.end - load.position
            self._scheduler.loaded(request_id)
            return
        if self._settings.kv_load_failure_policy == "fail":
            self._errors[request_id] = (
                f"its cached beginning could not be loaded ({load.error}), and kv_load_failure_policy is fail; send it again."
            )
        self._scheduler.recompute(request_id, load.position)
        self._scheduler.wake(request_id)

    def _kept(self, move: Move) -> str:
        return f"{self.name}/{move.order.id}"
