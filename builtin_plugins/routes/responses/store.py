"""Stores responses of owners in a database, item by item.

Each owner has a share of the bytes. A response that does not fit replaces the owner's own oldest
ones, or is not stored.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from fastapi import HTTPException

from builtin_plugins.routes.responses.database import Connection, Database, DatabaseUnavailable
from builtin_plugins.routes.responses.table_reader import Link, StoredResponse, index_key
from builtin_plugins.routes.responses.tables import ResponseTables, Shares
from core.api import InvalidRequest
from core.api.serving import RateLimitedLogger

log = logging.getLogger(__name__)

T = TypeVar("T")
Reserve = Callable[[int], None]
"""Counts bytes that a request makes the server read. Raises for a request over its limit."""

MAX_CHAIN_ITEMS: Final = 50_000
"""Largest number of stored items that one request can continue."""
DECODED_ITEM_BYTES: Final = 1024
"""Size of a decoded item in addition to its JSON text."""
MAX_WAIT_S: Final = 10.0
"""Longest time of a transaction, and of the wait for a connection to the database."""
COMPLETE_WITHIN_S: Final = 5.0
"""Time in which completing a response is tried again, such as during a restart of the database."""
RETRY_S: Final = 0.25
"""Pause between two tries."""
BEAT_S: Final = 20.0
"""Interval in which a server records that it is alive, in a database of several servers."""
SILENT_S: Final = 180.0
"""Silence after which the incomplete responses of a server are deleted."""


class Page(msgspec.Struct, frozen=True):
    """Some input items of a chain."""

    ids: list[str]
    items: list[msgspec.Raw]
    has_more: bool


class _HasId(msgspec.Struct):
    id: str


class ResponseStore:
    """Responses by owner and id. Own threads access the database.

    Reading raises `HTTPException` (503) while the database is unavailable; nothing is stored then.
    """

    def __init__(self, database: Database, max_bytes: int, owner_bytes: int | None = None) -> None:
        self._database = database
        self._shares = Shares(
            max_bytes, max_bytes if owner_bytes is None else min(owner_bytes, max_bytes)
        )
        self._server = secrets.token_hex(8)
        self._threads = ThreadPoolExecutor(database.num_connections, "response-store")
        self._log = RateLimitedLogger(log)
        self._is_closed = threading.Event()
        self._threads.submit(self._beat).result()
        if database.is_shared:
            threading.Thread(target=self._beats, name="response-store-beat", daemon=True).start()

    def close(self) -> None:
        """Close the database."""
        self._is_closed.set()
        self._threads.shutdown()
        self._database.close()

    async def add(
        self,
        owner: str,
        response_id: str,
        items: Sequence[dict[str, Any]],
        previous: str | None = None,
        *,
        pinned: bool = False,
    ) -> bool:
        """Store the input of a response that is not complete yet; return whether it is stored.

        A pinned response, which runs in the background, is not evicted before it is complete.
        """
        is_stored = await self._write(
            lambda tables: tables.add(owner, response_id, items, previous, pinned=pinned)
        )
        if not is_stored:  # but a slow disk may store it later
            self._threads.submit(self._drop, owner, response_id)
        return is_stored

    def _drop(self, owner: str, response_id: str) -> None:
        work = partial(self._work, lambda tables: tables.drop_incomplete(owner, response_id))
        with suppress(DatabaseUnavailable):
            self._database.transaction(work, writes=True)

    async def complete(self, response: dict[str, Any]) -> bool:
        """Store a complete response, unless its input has been evicted; return whether it is."""
        return await self._write(
            lambda tables: tables.complete(response), within_s=COMPLETE_WITHIN_S
        )

    async def discard(self, response_id: str) -> None:
        """Delete a response that has ended without being completed, if there is one."""
        await self._write(lambda tables: tables.delete("id = ? AND complete = 0", response_id))

    async def delete(self, owner: str, response_id: str) -> bool:
        """Delete a response; return whether the owner had one of this id."""
        return await self._run(
            lambda tables: tables.delete("owner = ? AND id = ?", owner, index_key(response_id)),
            writes=True,
        )

    async def get(
        self, owner: str, response_id: str, reserve: Reserve = lambda num_bytes: None
    ) -> dict[str, Any] | None:
        """Return a response; None if the owner has none of this id, or it is not complete."""

        def find(tables: ResponseTables) -> tuple[Link, int] | None:
            link = tables.link(owner, response_id)
            return None if link is None else (link, tables.response_size(link))

        found = await self._run(find)
        if found is None:
            return None
        link, size = found
        reserve(size)
        return await self._run(lambda tables: tables.response(link))

    async def items(
        self, owner: str, ids: Collection[str], reserve: Reserve = lambda num_bytes: None
    ) -> dict[str, dict[str, Any]]:
        """Return the output items of the owner's responses, by id, without unknown ids."""
        if not ids:
            return {}
        places = await self._run(lambda tables: tables.outputs(owner, ids))
        reserve(sum(size for _, _, size in places.values()))
        return await self._run(lambda tables: tables.read_outputs(places))

    async def chain(self, owner: str, response_id: str) -> list[Link] | None:
        """Return a response after all those it continues; None if one of them is missing.

        No item is read.
        """
        return await self._run(lambda tables: tables.chain(owner, response_id))

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
            stored = await self._run(partial(ResponseTables.stored, link=link))
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
            position = await self._run(lambda tables: tables.position(chain, counts, after))
            if position is None:
                return None
            start = (total - position) if newest_first else position + 1
        end = min(start + limit, total)
        first = total - end if newest_first else start
        places = _places(chain, counts, first, end - start)
        sizes = await self._run(lambda tables: tables.sizes(places))
        reserve(sum(sizes))
        rows = await self._run(lambda tables: tables.rows(places))
        if newest_first:
            rows.reverse()
        ids = [msgspec.json.decode(row, type=_HasId).id for row in rows]
        return Page(ids, [msgspec.Raw(row) for row in rows], end < total)

    # --- transactions

    async def _write(self, work: Callable[[ResponseTables], bool], within_s: float = 0.0) -> bool:
        """Run work; return False if the database is unavailable, after tries `within_s` seconds."""
        until_s = time.monotonic() + within_s
        while True:
            try:
                return await self._in_thread(work, writes=True)
            except DatabaseUnavailable as error:
                if time.monotonic() >= until_s:
                    self._report(error)
                    return False
            await asyncio.sleep(RETRY_S)

    async def _run(self, work: Callable[[ResponseTables], T], *, writes: bool = False) -> T:
        """Run work. Raises `HTTPException` (503) if the database is unavailable."""
        try:
            return await self._in_thread(work, writes=writes)
        except DatabaseUnavailable as error:
            self._report(error)
            detail = {
                "message": "the store of responses is unavailable; try again.",
                "code": "store_unavailable",
            }
            raise HTTPException(503, detail, {"Retry-After": "1"}) from error

    async def _in_thread(self, work: Callable[[ResponseTables], T], *, writes: bool) -> T:
        latest_s = time.monotonic() + MAX_WAIT_S

        def in_time(connection: Connection) -> T:
            result = self._work(work, connection)
            if time.monotonic() > latest_s:
                raise _too_slow()  # its request has gone on
            return result

        transaction = partial(self._database.transaction, in_time, writes=writes)
        try:
            async with asyncio.timeout(MAX_WAIT_S):  # cancels it if it has not begun
                return await asyncio.get_running_loop().run_in_executor(self._threads, transaction)
        except TimeoutError:
            raise _too_slow() from None

    def _work(self, work: Callable[[ResponseTables], T], connection: Connection) -> T:
        return work(ResponseTables(connection, self._shares, self._server))

    def _report(self, error: DatabaseUnavailable) -> None:
        self._log.error("response store", f"--responses-store: {error}", error)

    # --- this server among several

    def _beat(self) -> None:
        """Record that this server is alive, and delete what dead ones have not completed."""

        def work(connection: Connection) -> None:
            now_s = self._database.now_s(connection)
            tables = ResponseTables(connection, self._shares, self._server)
            tables.beat(now_s)
            tables.delete_abandoned(now_s - (SILENT_S if self._database.is_shared else 0.0))

        self._database.transaction(work, writes=True)

    def _beats(self) -> None:
        while not self._is_closed.wait(BEAT_S):
            try:
                self._threads.submit(self._beat).result()
            except DatabaseUnavailable as error:
                self._report(error)


def _too_slow() -> DatabaseUnavailable:
    return DatabaseUnavailable(f"a transaction takes longer than {MAX_WAIT_S:g} s")


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
