"""Tables of stored responses: one row per response and one per item, by owner."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar

import msgspec

from core.api import ConfigError

T = TypeVar("T")

MAX_CHAIN: Final = 1000
"""Largest number of responses in a chain, each of which continues the one before."""
ITEM_BYTES: Final = 128
"""Size of a stored item in addition to its JSON text: its row and its index entries."""
_VERSION: Final = 1
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL,
    previous TEXT, complete INTEGER NOT NULL, size INTEGER NOT NULL,
    num_input INTEGER NOT NULL, num_items INTEGER NOT NULL, response BLOB);
CREATE INDEX IF NOT EXISTS responses_of ON responses (owner, number);
CREATE TABLE IF NOT EXISTS items (
    response INTEGER NOT NULL, position INTEGER NOT NULL, id TEXT NOT NULL,
    is_output INTEGER NOT NULL, item BLOB NOT NULL, PRIMARY KEY (response, position)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS item_ids ON items (response, id);
CREATE INDEX IF NOT EXISTS outputs ON items (id) WHERE is_output;
"""


class StoredResponse(msgspec.Struct, frozen=True):
    """A response, and its input."""

    response: dict[str, Any]
    input: list[dict[str, Any]]
    """Items of the response's own request, without those of the responses it continues."""


class Link(msgspec.Struct, frozen=True):
    """One response of a chain, without its items."""

    number: int
    previous: str | None
    size: int
    num_input: int
    num_items: int
    """Number of input and output items."""


class ResponseTables:
    """Responses in an SQLite database. Use it from one thread at a time."""

    def __init__(self, path: str, max_bytes: int, owner_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._owner_bytes = max_bytes if owner_bytes is None else min(owner_bytes, max_bytes)
        self.pinned: set[str] = set()
        """Ids of responses that run in the background, which are never evicted."""
        self._bytes: dict[str, int] = {}
        try:
            if path:  # only readable by this user
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(
                path or ":memory:", check_same_thread=False, isolation_level=None
            )
            self._open(path)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"--responses-store {path} cannot be used: {error}; give a file that can be "
                "written."
            ) from error

    def in_transaction(self, work: Callable[[], T]) -> T:
        """Run work whole, or not at all."""
        self._database.execute("BEGIN")
        try:
            result = work()
        except BaseException:
            self._database.execute("ROLLBACK")
            self._count_bytes()
            raise
        self._database.execute("COMMIT")
        return result

    def _open(self, path: str) -> None:
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        (num_tables,) = self._database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        if num_tables and version != _VERSION:
            raise ConfigError(
                f"--responses-store: got {path} in format {version}; expected format {_VERSION}. "
                "Give another file."
            )
        self._database.executescript(_TABLES)
        self._database.execute(f"PRAGMA user_version = {_VERSION}")
        self._count_bytes()
        self.delete("complete = 0")  # they ended with the server before

    def _count_bytes(self) -> None:
        rows = self._database.execute("SELECT owner, SUM(size) FROM responses GROUP BY owner")
        self._bytes = dict(rows)

    def add(
        self, owner: str, response_id: str, items: Sequence[dict[str, Any]], previous: str | None
    ) -> bool:
        """Store the input of a response; return False if it cannot fit."""
        encoded = [msgspec.json.encode(item) for item in items]
        size = ITEM_BYTES + _size(items, encoded)
        if not self._make_room(owner, size):
            return False
        number = self._database.execute(
            "INSERT INTO responses (id, owner, previous, complete, size, num_input, num_items) "
            "VALUES (?, ?, ?, 0, ?, ?, ?)",
            (response_id, owner, previous, size, len(items), len(items)),
        ).lastrowid
        self._database.executemany(
            "INSERT INTO items VALUES (?, ?, ?, 0, ?)",
            [(number, i, items[i]["id"], item) for i, item in enumerate(encoded)],
        )
        self._bytes[owner] = self._bytes.get(owner, 0) + size
        return True

    def complete(self, response: dict[str, Any]) -> bool:
        """Store a complete response, unless its input has been evicted; return whether it is."""
        row = self._database.execute(
            "SELECT number, owner, num_input FROM responses WHERE id = ? AND complete = 0",
            (response["id"],),
        ).fetchone()
        if row is None:
            return False
        number, owner, num_input = row
        output = response["output"]
        encoded = [msgspec.json.encode(item) for item in output]
        head = msgspec.json.encode({**response, "output": []})
        size = len(head) + _size(output, encoded)
        pinned = response["id"] in self.pinned
        self.pinned.add(response["id"])  # not evicted for its own output
        fits = self._make_room(owner, size)
        if not pinned:
            self.pinned.discard(response["id"])
        if not fits and not pinned:
            self.delete("number = ?", number)
            return False
        self._database.execute(
            "UPDATE responses SET complete = 1, response = ?, size = size + ?, num_items = ? "
            "WHERE number = ?",
            (head, size, num_input + len(output), number),
        )
        self._database.executemany(
            "INSERT INTO items VALUES (?, ?, ?, 1, ?)",
            [(number, num_input + i, output[i]["id"], item) for i, item in enumerate(encoded)],
        )
        self._bytes[owner] += size
        return True

    def _make_room(self, owner: str, size: int) -> bool:
        """Evict the owner's oldest responses until `size` bytes fit; return whether they do.

        Nothing is evicted if that cannot make enough room.
        """
        own = self._bytes.get(owner, 0)
        total = sum(self._bytes.values())
        excess = size + max(own - self._owner_bytes, total - self._max_bytes)
        if excess <= 0:
            return True
        if excess > own - self._pinned_bytes(owner):
            return False
        evicted: list[int] = []
        for number, each, response_id in self._database.execute(
            "SELECT number, size, id FROM responses WHERE owner = ? ORDER BY number", (owner,)
        ):
            if response_id not in self.pinned:
                evicted.append(number)
                excess -= each
            if excess <= 0:
                break
        for number in evicted:
            self.delete("number = ?", number)
        return True

    def _pinned_bytes(self, owner: str) -> int:
        rows = [
            self._database.execute(
                "SELECT size FROM responses WHERE id = ? AND owner = ?", (each, owner)
            ).fetchone()
            for each in tuple(self.pinned)
        ]
        return sum(row[0] for row in rows if row is not None)

    def link(self, owner: str, response_id: str) -> Link | None:
        """Return a complete response of an owner, or None."""
        row = self._database.execute(
            "SELECT number, previous, size, num_input, num_items FROM responses "
            "WHERE id = ? AND owner = ? AND complete",
            (response_id, owner),
        ).fetchone()
        return None if row is None else Link(*row)

    def response_size(self, link: Link) -> int:
        """Return the bytes of a response with its output."""
        (size,) = self._database.execute(
            "SELECT COALESCE(SUM(LENGTH(response)), 0) FROM responses WHERE number = ?",
            (link.number,),
        ).fetchone()
        return int(size) + sum(self.sizes([(link, link.num_input, link.num_items)]))

    def response(self, link: Link) -> dict[str, Any] | None:
        """Return a response with its output; None if it was deleted."""
        row = self._database.execute(
            "SELECT response FROM responses WHERE number = ?", (link.number,)
        ).fetchone()
        if row is None:
            return None
        response: dict[str, Any] = msgspec.json.decode(row[0])
        rows = self.rows([(link, link.num_input, link.num_items)])
        response["output"] = [decode_item(item) for _, item in rows]
        return response

    def stored(self, link: Link) -> StoredResponse | None:
        """Return a response with its input; None if it was deleted."""
        response = self.response(link)
        if response is None:
            return None
        rows = self.rows([(link, 0, link.num_input)])
        return StoredResponse(response, [decode_item(item) for _, item in rows])

    def outputs(self, owner: str, ids: Collection[str]) -> dict[str, tuple[int, int, int]]:
        """Return response, position and size of output items, by id."""
        found = {}
        for each in ids:
            row = self._database.execute(
                "SELECT i.response, i.position, LENGTH(i.item) FROM items i JOIN responses r "
                "ON r.number = i.response WHERE i.is_output AND i.id = ? AND r.owner = ?",
                (each, owner),
            ).fetchone()
            if row is not None:
                found[each] = row
        return found

    def read_outputs(self, places: dict[str, tuple[int, int, int]]) -> dict[str, dict[str, Any]]:
        """Return output items, by id."""
        found = {}
        for each, (number, position, _) in places.items():
            row = self._database.execute(
                "SELECT item FROM items WHERE response = ? AND position = ?", (number, position)
            ).fetchone()
            if row is not None:
                found[each] = decode_item(row[0])
        return found

    def position(self, chain: Sequence[Link], counts: Sequence[int], item_id: str) -> int | None:
        """Return the position of the first item of this id in a chain."""
        first = 0
        for link, count in zip(chain, counts, strict=True):
            (found,) = self._database.execute(
                "SELECT MIN(position) FROM items WHERE response = ? AND id = ? AND position < ?",
                (link.number, item_id, count),
            ).fetchone()
            if found is not None:
                return first + int(found)
            first += count
        return None

    def sizes(self, places: Sequence[tuple[Link, int, int]]) -> list[int]:
        """Return the bytes of items in ranges of positions."""
        return [
            self._database.execute(
                "SELECT COALESCE(SUM(LENGTH(item)), 0) FROM items "
                "WHERE response = ? AND position >= ? AND position < ?",
                (link.number, start, end),
            ).fetchone()[0]
            for link, start, end in places
        ]

    def rows(self, places: Sequence[tuple[Link, int, int]]) -> list[tuple[str, bytes]]:
        """Return id and JSON text of the items in ranges of positions."""
        return [
            row
            for link, start, end in places
            for row in self._database.execute(
                "SELECT id, item FROM items WHERE response = ? AND position >= ? AND position < ? "
                "ORDER BY position",
                (link.number, start, end),
            )
        ]

    def delete(self, which: str, *values: str | int) -> bool:
        """Delete responses by a condition; return whether there were any."""
        gone = self._database.execute(
            f"DELETE FROM responses WHERE {which} RETURNING number, owner, size", values
        ).fetchall()
        for number, owner, size in gone:
            self._database.execute("DELETE FROM items WHERE response = ?", (number,))
            self._bytes[owner] -= size
            if not self._bytes[owner]:
                del self._bytes[owner]
        return bool(gone)


def decode_item(item: bytes) -> dict[str, Any]:
    """Return an item."""
    found: dict[str, Any] = msgspec.json.decode(item)
    return found


def _size(items: Sequence[dict[str, Any]], encoded: Sequence[bytes]) -> int:
    """Return the stored size of items; the table and its indexes repeat the ids."""
    ids = sum(len(item["id"]) for item in items)
    return sum(map(len, encoded)) + 2 * ids + ITEM_BYTES * len(items)
