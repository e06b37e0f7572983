"""Which blocks leave: those that a step has computed, once its result is in.

Nobody else gets one before it is written.
"""

from __future__ import annotations

from typing import Any

from builtin_plugins.kv_connectors.holdings import Holdings
from builtin_plugins.kv_connectors.messages import Order
from builtin_plugins.kv_connectors.moves import Move, Moves
from builtin_plugins.kv_connectors.trouble import Trouble
from core.api import BlockKey


class Storing:
    """What a tier is to get."""

    def __init__(self, scheduler: Any, holdings: Holdings, moves: Moves, trouble: Trouble) -> None:
        """`trouble`: of writing."""
        self._scheduler = scheduler
        self._kv = scheduler.kv
        self._holdings = holdings
        self._moves = moves
        self._trouble = trouble
        self._sizes = [group.block_size for group in self._kv.layout.groups]
        self._link = self._kv.layout.hash_block_size
        self.num_stored = self.num_unstored = 0
        """Blocks since the start, and those of them whose writing failed."""
        self.fresh: dict[BlockKey, int] = {}
        """Blocks to be stored, by the key they are cached under, and the step whose result must be
        in.
        """

    def offered(self, lease: Any, start: int) -> None:
        """Note what a step computes from a position on."""
        step = self._kv.issued + 1
        for group, (size, table) in enumerate(zip(self._sizes, lease.tables, strict=True)):
            links = size // self._link
            for place in range(start // size, lease.offered // size):
                key = BlockKey(group, lease.keys[(place + 1) * links - 1])
                if table[place] and not self._holdings.directory.holds(self._holdings.name(*key)):
                    self.fresh.setdefault(key, step)

    def may_begin(self, step: int) -> bool:
        """Say whether stores are to be asked in this step."""
        return self._trouble.may_ask(step)

    def begin(self, step: int, most_bytes: int) -> list[Order]:
        """Begin with what may be stored in this step, until so many bytes are under way."""
        begun: list[Order] = []
        while self.fresh and self._moves.num_bytes < most_bytes and self.may_begin(step):
            key = next(iter(self.fresh))
            if self.fresh[key] > self._kv.returned:
                break
            del self.fresh[key]
            if (move := self._move(key)) is not None:
                begun.append(self._moves.begin(move))
        return begun

    def _move(self, key: BlockKey) -> Move | None:
        """Return the move of a block that is still cached and that there is room for, kept until it
        is done.
        """
        pool = self._kv.pools[self._kv.layout.groups[key.group].pool]
        block = pool.find(key.group).get(key.key)
        name = self._holdings.name(*key)
        if block is None or not self._holdings.admit(name):
            return None
        move = self._moves.make(name, block, None, self._trouble)
        tables: list[list[int]] = [[] for _ in self._sizes]
        tables[key.group].append(block)
        self._scheduler.keep(self._moves.lease(move.order.id), tables)
        return move

    def ended(self, move: Move) -> None:
        """A block was written on all ranks, or not."""
        self._scheduler.release(self._moves.lease(move.order.id))
        if move.verdict:
            self.num_unstored += 1
            self._holdings.lose(move.order.key)
        else:
            self.num_stored += 1
            self._holdings.directory.stored(move.order.key)
