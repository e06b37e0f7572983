"""Stores responses in memory or in an SQLite file, up to a size; the oldest are evicted first."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar

import msgspec

from core.api import ConfigError

T = TypeVar("T")

MAX_CHAIN: Final = 1000
"""Largest number of responses in a chain, each of which continues the one before."""


class StoredResponse(msgspec.Struct, frozen=True):
    """A response, and its input."""

    response: dict[str, Any]
    input: list[dict[str, Any]]
    """Items of the response's own request, without those of the responses it continues."""

    @property
    def previous(self) -> str | None:
        """Id of the response that it continues; None for the first of a chain."""
        found: str | None = self.response.get("previous_response_id")
        return found


class ResponseStore:
    """Responses by id. Use it from one event loop; the database is accessed in threads."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        try:
            if path:  # only readable by this user
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(
                path or ":memory:", check_same_thread=False, isolation_level=None
            )
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS responses "
                "(number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, size INTEGER NOT NULL, "
                "input BLOB NOT NULL, response BLOB)"
            )
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS items (id TEXT PRIMARY KEY, response TEXT NOT NULL) "
                "WITHOUT ROWID"
            )
            self._database.execute("CREATE INDEX IF NOT EXISTS items_of ON items (response)")
            (self._num_bytes,) = self._database.execute(
                "SELECT COALESCE(SUM(size), 0) FROM responses"
            ).fetchone()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"--responses-store {path} cannot be used: {error}; give a file that can be "
                "written."
            ) from error

    async def add(self, response_id: str, items: list[dict[str, Any]]) -> None:
        """Store the input of a response that is not complete yet."""
        await self._in_thread(lambda: self._add(response_id, msgspec.json.encode(items)))

    async def complete(self, response: dict[str, Any]) -> None:
        """Store a complete response, unless its input has been evicted."""
        ids = [item["id"] for item in response["output"]]
        await self._in_thread(
            lambda: self._complete(str(response["id"]), msgspec.json.encode(response), ids)
        )

    async def get(self, response_id: str) -> StoredResponse | None:
        """Return a response; None if it is not stored, evicted or not complete."""
        return await self._in_thread(lambda: self._get(response_id))

    async def items(self, ids: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the output items of stored responses, by id; unknown ids are left out."""
        return await self._in_thread(lambda: self._items(ids)) if ids else {}

    async def chain(self, response_id: str) -> list[StoredResponse] | None:
        """Return a response after all those it continues; None if one of them is missing."""
        found: list[StoredResponse] = []
        next_id: str | None = response_id
        while next_id is not None:
            stored = await self.get(next_id)
            if stored is None or len(found) == MAX_CHAIN:
                return None
            found.append(stored)
            next_id = stored.previous
        return found[::-1]

    async def delete(self, response_id: str) -> bool:
        """Delete a response; return whether there was one."""
        return await self._in_thread(lambda: self._delete("id = ?", response_id))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def locked() -> T:
            with self._lock:
                return work()

        return await asyncio.to_thread(locked)

    def _add(self, response_id: str, items: bytes) -> None:
        self._database.execute(
            "INSERT INTO responses (id, size, input) VALUES (?, ?, ?)",
            (response_id, len(items), items),
        )
        self._evict(len(items))

    def _complete(self, response_id: str, response: bytes, item_ids: Sequence[str]) -> None:
        done = self._database.execute(
            "UPDATE responses SET response = ?, size = size + ? WHERE id = ?",
            (response, len(response), response_id),
        )
        if done.rowcount:
            rows = [(item_id, response_id) for item_id in item_ids]
            self._database.executemany(
                "INSERT OR REPLACE INTO items (id, response) VALUES (?, ?)", rows
            )
            self._evict(len(response))

    def _get(self, response_id: str) -> StoredResponse | None:
        found = self._database.execute(
            "SELECT response, input FROM responses WHERE id = ? AND response IS NOT NULL",
            (response_id,),
        ).fetchone()
        return None if found is None else StoredResponse(*map(msgspec.json.decode, found))

    def _items(self, ids: Collection[str]) -> dict[str, dict[str, Any]]:
        rows = [
            self._database.execute("SELECT response FROM items WHERE id = ?", (each,)).fetchone()
            for each in ids
        ]
        stored = [
            self._get(response_id)
            for response_id in dict.fromkeys(row[0] for row in rows if row is not None)
        ]
        found = (item for each in stored if each is not None for item in each.response["output"])
        return {item["id"]: item for item in found if item["id"] in ids}

    def _evict(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            self._delete("number = (SELECT MIN(number) FROM responses)")

    def _delete(self, which: str, *values: str) -> bool:
        gone = self._database.execute(
            f"DELETE FROM responses WHERE {which} RETURNING id, size", values
        ).fetchall()
        self._database.executemany(
            "DELETE FROM items WHERE response = ?", [(each,) for each, _ in gone]
        )
        self._num_bytes -= sum(size for _, size in gone)
        return bool(gone)
