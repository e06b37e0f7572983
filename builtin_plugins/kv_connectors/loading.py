"""Which blocks come back, and for whom: a request waits with its blocks until all of them are there
and right. Where one is not,
it is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from builtin_plugins.kv_connectors.exchange import Exchange
from builtin_plugins.kv_connectors.holdings import Holdings
from builtin_plugins.kv_connectors.messages import OTHER_WEIGHTS, Order
from builtin_plugins.kv_connectors.moves import TOO_LATE, Load, Move, Moves
from builtin_plugins.kv_connectors.trouble import Trouble
from core.api import BlockKey, RequestFailed


class Loading:
    """What requests wait for."""

    def __init__(
        self,
        scheduler: Any,
        holdings: Holdings,
        moves: Moves,
        trouble: Trouble,
        exchange: Exchange | None,
        *,
        recomputes: bool,
    ) -> None:
        """`trouble`: of reading; `recomputes`: or else requests fail whose blocks do not come."""
        self._scheduler = scheduler
        self._kv = scheduler.kv
        self._holdings = holdings
        self._moves = moves
        self._trouble = trouble
        self._exchange = exchange
        self._sizes = [group.block_size for group in self._kv.layout.groups]
        self._link = self._kv.layout.hash_block_size
        self._recomputes = recomputes
        self.num_loaded = self.num_unloaded = 0
        """Blocks since the start, and those whose reading failed, or that were not what was
        written.
        """
        self.hit_tokens = 0
        """That requests began with because of what was brought for them."""
        self._reads: deque[tuple[Load, Move]] = deque()
        """Blocks to be loaded."""
        self._loads: dict[str, Load] = {}
        """By request that waits."""
        self._errors: dict[str, str] = {}
        """Of requests that are to fail."""

    @property
    def waits_any(self) -> bool:
        """Say whether any block is still to be asked for."""
        return bool(self._reads)

    def holds(self, group: int, key: bytes) -> bool:
        """Say whether a block can be had now."""
        name = self._holdings.name(group, key)
        return bool(self._holdings.directory.holds(name)) and self._asks(
            self._source(name)
        ).may_ask(self._kv.issued)

    def _source(self, name: BlockKey) -> bytes:
        """Return which other engine has a block; empty: it is here."""
        return b"" if self._exchange is None else self._exchange.source(name)

    def _asks(self, source: bytes) -> Trouble:
        """Return what is known of whoever is asked for a block."""
        return (
            self._trouble
            if self._exchange is None or not source
            else self._exchange.trouble(source)
        )

    # --- requests

    def may_start(self, request_id: str) -> bool:
        """Say whether a request waits for nothing.

        Raises for one whose blocks did not come, where that is wanted.
        """
        if (error := self._errors.pop(request_id, None)) is not None:
            raise RequestFailed(error)
        return request_id not in self._loads

    def park(self, request: Any, wanted: Sequence[Any]) -> None:
        """Have blocks read; the request waits for them."""
        extent = self._extent(request, {(each.group, each.key) for each in wanted})
        load = Load(
            self._moves.lease(self._moves.number()), request.request_id, *extent, len(wanted)
        )
        tables: list[list[int]] = [[] for _ in self._sizes]
        for each in wanted:
            tables[each.group].append(each.block)
            name = self._holdings.name(each.group, each.key)
            source = self._source(name)
            self._holdings.pinned[name] += 1
            self._reads.append(
                (load, self._moves.make(name, each.block, load, self._asks(source), source))
            )
        self._scheduler.keep(load.name, tables)
        self._loads[request.request_id] = load

    def _extent(self, request: Any, wanted: set[tuple[int, bytes]]) -> tuple[int, int]:
        """Return the first position of blocks that are brought for a request, and that behind the
        last.
        """
        ends = [
            (group, (place + 1) * self._link)
            for group in range(len(self._sizes))
            for place, key in enumerate(request.keys)
            if (group, key) in wanted
        ]
        return min(end - self._sizes[group] for group, end in ends), max(end for _, end in ends)

    def forget(self, request_id: str) -> None:
        """Nobody waits for this request's blocks; they are kept until nobody writes to them any
        more.
        """
        self._errors.pop(request_id, None)
        if (load := self._loads.pop(request_id, None)) is not None:
            load.request_id = None

    # --- moves

    def begin(self, most_bytes: int) -> list[Order]:
        """Begin with what requests wait for, until so many bytes are under way."""
        begun: list[Order] = []
        while self._reads and self._moves.num_bytes < most_bytes:
            _, move = self._reads.popleft()
            begun.append(self._moves.begin(move))
        return begun

    def ended(self, move: Move, load: Load) -> None:
        """A block was read on all ranks, or not."""
        error = move.verdict
        self.num_loaded += not error
        self.num_unloaded += bool(error)
        self._read_ended(load, move.order.key, error)
        if error and move.error != OTHER_WEIGHTS:
            self._holdings.lose(move.order.key)

    def late(self, load: Load) -> None:
        """One of its blocks takes too long: nobody waits for the others."""
        load.error = load.error or TOO_LATE
        self._go_on(load)

    def give_up(self) -> None:
        """Nobody waits for whoever is left alone for a while."""
        step = self._kv.issued + 1
        self._drop(
            lambda move: not move.trouble.may_ask(step), "its connector is left alone for a while"
        )

    def refilled(self) -> None:
        """What was to be read is of other weights."""
        self._drop(lambda move: True, OTHER_WEIGHTS)

    def _drop(self, is_wrong: Callable[[Move], bool], error: str) -> None:
        """Do not begin with those that are wrong."""
        reads = self._reads
        self._reads = deque()
        for load, move in reads:
            if is_wrong(move):
                self._read_ended(load, move.order.key, error)
            else:
                self._reads.append((load, move))

    def _read_ended(self, load: Load, name: BlockKey, error: str) -> None:
        pinned = self._holdings.pinned
        pinned[name] -= 1
        if not pinned[name]:
            del pinned[name]
        load.error = load.error or error
        load.num_left -= 1
        if not load.num_left:
            self._go_on(load)
            self._scheduler.release(load.name)

    def _go_on(self, load: Load) -> None:
        """Let the request that waits start: with what was brought, or without it."""
        if load.request_id is None:
            return
        request_id = load.request_id
        load.request_id = None
        del self._loads[request_id]
        if not load.error:
            self.hit_tokens += load.end - load.position
            self._scheduler.loaded(request_id)
            return
        if not self._recomputes:
            self._errors[request_id] = (
                f"its cached beginning could not be loaded ({load.error}), and "
                "kv_load_failure_policy is fail; send it again."
            )
        self._scheduler.recompute(request_id, load.position)
        self._scheduler.wake(request_id)
