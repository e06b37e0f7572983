"""Which blocks are asked for that only the stores know of: a request waits until all ranks have
said what they have for it.

For places that others write to, and that cannot be listed. A request that finds all of its
beginning here asks for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from builtin_plugins.kv_connectors.holdings import Holdings
from builtin_plugins.kv_connectors.messages import Late, Look, Looked
from builtin_plugins.kv_connectors.trouble import Trouble
from core.api import BlockKey


@dataclass(slots=True, eq=False)
class Asked:
    """A question under way."""

    request_id: str
    num_left: int
    """Ranks that have not answered."""


class Looking:
    """The questions of one tier."""

    def __init__(
        self, scheduler: Any, holdings: Holdings, trouble: Trouble, num_ranks: int
    ) -> None:
        """`trouble`: of asking."""
        self.trouble = trouble
        self.unasked: list[Look] = []
        """Questions that have yet to go out."""
        self._scheduler = scheduler
        self._kv = scheduler.kv
        self._holdings = holdings
        self._num_ranks = num_ranks
        self._sizes = [group.block_size for group in self._kv.layout.groups]
        self._link = self._kv.layout.hash_block_size
        self._num_looks = 0
        self._asked: dict[int, Asked] = {}
        self._looks: dict[str, int] = {}
        """By request that waits."""

    def arrived(self, request: Any) -> None:
        """Ask for what a request begins with, as far as it is neither cached nor known to be in a
        tier.
        """
        if not self.trouble.may_ask(self._kv.issued):
            return
        # Which makes its keys, too.
        found = self._kv.find(request.lease, request.tokens, request.num_tokens).num_tokens
        keys = [
            name
            for name in self._names(request.keys, found)
            if not self._holdings.directory.holds(name)
        ]
        if not keys:
            return
        self._num_looks += 1
        self.unasked.append(Look(self._num_looks, keys))
        self._asked[self._num_looks] = Asked(request.request_id, self._num_ranks)
        self._looks[request.request_id] = self._num_looks

    def _names(self, keys: list[bytes], found: int) -> list[BlockKey]:
        """Return the names of blocks behind so many tokens, by group, the first ones first."""
        names = []
        for group, size in enumerate(self._sizes):
            links = size // self._link
            for place in range(found // size, len(keys) // links):
                names.append(self._holdings.name(group, keys[(place + 1) * links - 1]))
        return names

    def waits(self, request_id: str) -> bool:
        """Say whether a request waits for an answer."""
        return request_id in self._looks

    def forget(self, request_id: str) -> None:
        """Nobody waits for this request's answer."""
        self._looks.pop(request_id, None)

    def take(self) -> list[Look]:
        """Return the questions that go out, once."""
        looks = self.unasked
        self.unasked = []
        return looks

    def looked(self, told: Looked) -> None:
        """A rank has answered, or cannot say."""
        self.trouble.ended(self._number(told.id, told.rank), told.error, self._kv.issued)
        self._holdings.found(told.rank, told.keys)
        if (asked := self._asked.get(told.id)) is None:
            return
        asked.num_left -= 1
        if told.error or not asked.num_left:
            self._answered(told.id)

    def late(self, told: Late) -> None:
        """A rank takes too long: nobody waits for it."""
        ids = [each for each in told.ids if each in self._asked]
        self.trouble.late([self._number(each, told.rank) for each in ids], self._kv.issued)
        for each in ids:
            self._answered(each)

    def _answered(self, id_: int) -> None:
        request_id = self._asked.pop(id_).request_id
        if self._looks.get(request_id) == id_:
            del self._looks[request_id]
            self._scheduler.wake(request_id)

    def _number(self, id_: int, rank: int) -> int:
        """Return what no other rank's answer is called."""
        return id_ * self._num_ranks + rank
