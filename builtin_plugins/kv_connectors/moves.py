"""Blocks on their way between the cache and the stores of all ranks.

Knows neither why they move nor what is done then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from builtin_plugins.kv_connectors.messages import OTHER_WEIGHTS, UNLIKE, Late, Order
from builtin_plugins.kv_connectors.trouble import Trouble
from core.api import BlockKey

TOO_LATE: Final = "it takes longer than timeout_s"


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

    @property
    def verdict(self) -> str:
        """What keeps it from being used once it has ended; empty: nothing."""
        return self.error or ("it is not trusted any more" if self.distrusted else "")


class Moves:
    """The moves of one tier, by order."""

    def __init__(self, name: str, block_bytes: Sequence[int], num_ranks: int) -> None:
        """`block_bytes`: on one rank, by group."""
        self.num_bytes = 0
        """Of those under way, on each rank."""
        self._name = name
        self._block_bytes = block_bytes
        self._num_ranks = num_ranks
        self._moves: dict[int, Move] = {}
        self._given_up: dict[tuple[int, int], Trouble] = {}
        """By rank and order: whose end, if it comes, says that something works again."""
        self._num_orders = 0

    def __len__(self) -> int:
        return len(self._moves)

    def number(self) -> int:
        """Return a number that no other order has."""
        self._num_orders += 1
        return self._num_orders

    def lease(self, number: int) -> str:
        """Return the name under which the scheduler keeps blocks for an order or a load of this
        number.
        """
        return f"{self._name}/{number}"

    def make(
        self, name: BlockKey, block: int, load: Load | None, trouble: Trouble, source: bytes = b""
    ) -> Move:
        """Return a move that has not begun."""
        order = Order(self.number(), name, block, source)
        return Move(order, self._block_bytes[name.group], self._num_ranks, load, trouble)

    def begin(self, move: Move) -> Order:
        """It is under way."""
        self._moves[move.order.id] = move
        self.num_bytes += move.num_bytes
        return move.order

    def distrust(self, name: BlockKey) -> None:
        """Whatever moves under this name is not to be used."""
        for move in self._moves.values():
            move.distrusted |= move.order.key == name

    def late(self, told: Late, step: int) -> list[Move]:
        """A rank has given these up: return them.

        What it says of them later only tells that it works again.
        """
        late = [self._moves[each] for each in told.ids if each in self._moves]
        for trouble in dict.fromkeys(move.trouble for move in late):
            trouble.late([move.order.id for move in late if move.trouble is trouble], step)
        for move in late:
            move.is_late = True
            self._given_up[told.rank, move.order.id] = move.trouble
        return late

    def done(self, rank: int, id_: int, error: str, step: int) -> Move | None:
        """A rank is done with an order; return its move if it was the last of them."""
        if (stuck := self._given_up.pop((rank, id_), None)) is not None:
            stuck.ended(id_, error, step)
            return None
        return self.ended(id_, error, step)

    def ended(self, id_: int, error: str, step: int) -> Move | None:
        """One rank less works on an order; return its move if nobody does any more."""
        move = self._moves[id_]
        if not move.error or error.startswith(UNLIKE):  # of several ranks that one says most
            move.error = error
        move.num_ranks -= 1
        if move.num_ranks:
            return None
        del self._moves[id_]
        self.num_bytes -= move.num_bytes
        if move.error == OTHER_WEIGHTS:
            move.trouble.dropped(id_)
        elif not move.is_late:  # then its rank is stuck until it says otherwise
            move.trouble.ended(id_, move.error, step)
        return move
