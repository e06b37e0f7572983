"""Stores responses of owners in memory or in an SQLite file, item by item.

Each owner has a share of the bytes. A response that does not fit replaces the owner's own oldest
ones, or is not stored.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from builtin_plugins.routes.responses.tables import MAX_CHAIN, Link, ResponseTables, StoredResponse
from core.api import InvalidRequest

T = TypeVar("T")
Reserve = Callable[[int], None]
"""Counts bytes that a request makes the server read. Raises for a request over its limit."""

MAX_CHAIN_ITEMS: Final = 50_000
"""Largest number of stored items that one request can continue."""
DECODED_ITEM_BYTES: Final = 1024
"""Size of a decoded item in addition to its JSON text."""


class Page(msgspec.Struct, frozen=True):
    """Some input items of a chain."""

    ids: list[str]
    items: list[msgspec.Raw]
    has_more: bool


class ResponseStore:
    """Responses by owner and id. Use it from one event loop; threads access the database."""

    def __init__(self, path: str, max_bytes: int, owner_bytes: int | None = None) -> None:
        self._tables = ResponseTables(path, max_bytes, owner_bytes)
        self._lock = threading.Lock()

    def pin(self, response_id: str) -> None:
        """Keep a response that runs in the background, until `unpin`."""
        self._tables.pinned.add(response_id)

    def unpin(self, response_id: str) -> None:
        """Let a response be evicted."""
        self._tables.pinned.discard(response_id)

    async def add(
        self,
        owner: str,
        response_id: str,
        items: Sequence[dict[str, Any]],
        previous: str | None = None,
    ) -> bool:
        """Store the input of a response that is not complete yet; return False if it cannot fit."""
        return await self._in_thread(lambda: self._tables.add(owner, response_id, items, previous))

    async def complete(self, response: dict[str, Any]) -> bool:
        """Store a complete response, unless its input has been evicted; return whether it is."""
        return await self._in_thread(lambda: self._tables.complete(response))

    async def get(
        self, owner: str, response_id: str, reserve: Reserve = lambda num_bytes: None
    ) -> dict[str, Any] | None:
        """Return a response; None if the owner has none of this id, or it is not complete."""
        found = await self._in_thread(lambda: self._tables.link(owner, response_id))
        if found is None:
            return None
        size = await self._in_thread(lambda: self._tables.response_size(found))
        reserve(size)
        return await self._in_thread(lambda: self._tables.response(found))

    async def items(
        self, owner: str, ids: Collection[str], reserve: Reserve = lambda num_bytes: None
    ) -> dict[str, dict[str, Any]]:
        """Return the output items of the owner's responses, by id, without unknown ids."""
        if not ids:
            return {}
        places = await self._in_thread(lambda: self._tables.outputs(owner, ids))
        reserve(sum(size for _, _, size in places.values()))
        return await self._in_thread(lambda: self._tables.read_outputs(places))

    async def chain(self, owner: str, response_id: str) -> list[Link] | None:
        """Return a response after all those it continues; None if one of them is missing.

        No item is read.
        """
        return await self._in_thread(lambda: self._walk(owner, response_id))

    async def read(
        self, chain: Sequence[Link], reserve: Reserve = lambda num_bytes: None
    ) -> list[StoredResponse] | None:
        """Return the responses of a chain with all items; None if one was evicted meanwhile.

        Raises `InvalidRequest` for a chain with too many items.
        """
        num_items = sum(link.num_items for link in chain)
        if num_items > MAX_CHAIN_ITEMS:
            raise InvalidRequest(
                "previous_response_id",
                f"got a conversation of {num_items} items; expected at most {MAX_CHAIN_ITEMS}. "
                "Send its last part as `input`.",
            )
        reserve(sum(link.size for link in chain) + num_items * DECODED_ITEM_BYTES)
        found = []
        for link in chain:  # one at a time, so that other requests are not delayed
            stored = await self._in_thread(partial(self._tables.stored, link))
            if stored is None:
                return None
            found.append(stored)
        return found

    async def page(
        self,
        chain: Sequence[Link],
        *,
        newest_first: bool,
        after: str | None,
        limit: int,
        reserve: Reserve = lambda num_bytes: None,
    ) -> Page | None:
        """Return input items of a chain, of which only the page is read.

        None: `after` is not the id of one.
        """
        counts = [link.num_items for link in chain[:-1]] + [chain[-1].num_input]
        total = sum(counts)
        start = 0
        if after is not None:
            position = await self._in_thread(lambda: self._tables.position(chain, counts, after))
            if position is None:
                return None
            start = (total - position) if newest_first else position + 1
        end = min(start + limit, total)
        first = total - end if newest_first else start
        places = _places(chain, counts, first, end - start)
        sizes = await self._in_thread(lambda: self._tables.sizes(places))
        reserve(sum(sizes))
        rows = await self._in_thread(lambda: self._tables.rows(places))
        if newest_first:
            rows.reverse()
        return Page([row[0] for row in rows], [msgspec.Raw(row[1]) for row in rows], end < total)

    async def delete(self, owner: str, response_id: str) -> bool:
        """Delete a response; return whether the owner had one of this id."""
        return await self._in_thread(
            lambda: self._tables.delete("owner = ? AND id = ?", owner, response_id)
        )

    # --- in a thread

    def _walk(self, owner: str, response_id: str) -> list[Link] | None:
        found: list[Link] = []
        next_id: str | None = response_id
        while next_id is not None:
            link = self._tables.link(owner, next_id)
            if link is None or len(found) == MAX_CHAIN:
                return None
            found.append(link)
            next_id = link.previous
        return found[::-1]

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def locked() -> T:
            with self._lock:
                return self._tables.in_transaction(work)

        return await asyncio.to_thread(locked)


def _places(
    chain: Sequence[Link], counts: Sequence[int], first: int, num_items: int
) -> list[tuple[Link, int, int]]:
    """Return the ranges of positions, by response, of items from the `first` one of a chain."""
    found = []
    for link, count in zip(chain, counts, strict=True):
        start = max(first, 0)
        end = min(first + num_items, count)
        if start < end:
            found.append((link, start, end))
        first -= count
    return found
