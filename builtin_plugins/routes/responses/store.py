"""Responses that are kept: in memory or in an SQLite file, so many bytes of them, the oldest
forgotten first.
"""

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
"""Answers that one goes on from, one after the other."""


class Kept(msgspec.Struct, frozen=True):
    """A response, and what it answered."""

    response: dict[str, Any]
    input: list[dict[str, Any]]
    """Items of its own request, without those that it goes on from."""

    @property
    def previous(self) -> str | None:
        """The response that it goes on from."""
        found: str | None = self.response.get("previous_response_id")
        return found


class ResponseStore:
    """Keeps responses by id. Safe to call from one event loop; the database is read in threads."""

    def __init__(self, path: str, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        try:
            if path:  # what is said is for nobody else on this machine
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

    async def begin(self, response_id: str, items: list[dict[str, Any]]) -> None:
        """Keep what a response is to answer, so that nobody else need hold it for as long as that
        takes.
        """
        await self._apart(lambda: self._begin(response_id, msgspec.json.encode(items)))

    async def end(self, response: dict[str, Any]) -> None:
        """Keep a response whose input is kept, unless that had to make room."""
        ids = [item["id"] for item in response["output"]]
        await self._apart(
            lambda: self._end(str(response["id"]), msgspec.json.encode(response), ids)
        )

    async def get(self, response_id: str) -> Kept | None:
        """Return a response; None for one that is not kept, or no more, or not complete."""
        return await self._apart(lambda: self._get(response_id))

    async def items(self, ids: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return items that responses put out, by id; those of responses that are not kept are left
        out.
        """
        return await self._apart(lambda: self._items(ids)) if ids else {}

    async def chain(self, response_id: str) -> list[Kept] | None:
        """Return a response behind all that it goes on from; None where one of them is gone."""
        found: list[Kept] = []
        wanted: str | None = response_id
        while wanted is not None:
            kept = await self.get(wanted)
            if kept is None or len(found) == MAX_CHAIN:
                return None
            found.append(kept)
            wanted = kept.previous
        return found[::-1]

    async def delete(self, response_id: str) -> bool:
        """Forget a response; say whether there was one."""
        return await self._apart(lambda: self._delete("id = ?", response_id))

    async def _apart(self, work: Callable[[], T]) -> T:
        def locked() -> T:
            with self._lock:
                return work()

        return await asyncio.to_thread(locked)

    def _begin(self, response_id: str, items: bytes) -> None:
        self._database.execute(
            "INSERT INTO responses (id, size, input) VALUES (?, ?, ?)",
            (response_id, len(items), items),
        )
        self._make_room(len(items))

    def _end(self, response_id: str, response: bytes, item_ids: Sequence[str]) -> None:
        done = self._database.execute(
            "UPDATE responses SET response = ?, size = size + ? WHERE id = ?",
            (response, len(response), response_id),
        )
        if done.rowcount:
            rows = [(item_id, response_id) for item_id in item_ids]
            self._database.executemany(
                "INSERT OR REPLACE INTO items (id, response) VALUES (?, ?)", rows
            )
            self._make_room(len(response))

    def _get(self, response_id: str) -> Kept | None:
        found = self._database.execute(
            "SELECT response, input FROM responses WHERE id = ? AND response IS NOT NULL",
            (response_id,),
        ).fetchone()
        return None if found is None else Kept(*map(msgspec.json.decode, found))

    def _items(self, ids: Collection[str]) -> dict[str, dict[str, Any]]:
        rows = [
            self._database.execute("SELECT response FROM items WHERE id = ?", (each,)).fetchone()
            for each in ids
        ]
        kept = [
            self._get(response_id)
            for response_id in dict.fromkeys(row[0] for row in rows if row is not None)
        ]
        found = (item for each in kept if each is not None for item in each.response["output"])
        return {item["id"]: item for item in found if item["id"] in ids}

    def _make_room(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        while self._num_bytes > self._most_bytes:
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
