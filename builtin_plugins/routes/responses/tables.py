"""Tables of stored responses: one row per response and one per item, by owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from builtin_plugins.routes.responses.database import Connection
from builtin_plugins.routes.responses.table_reader import TableReader, index_key

ITEM_BYTES: Final = 128
"""Size of a stored item in addition to its JSON text: its row and its index entries."""


class Shares(msgspec.Struct, frozen=True):
    """Largest sizes of what is stored, in bytes."""

    total: int
    of_owner: int


class ResponseTables(TableReader):
    """Reads and writes responses within one transaction."""

    def __init__(self, connection: Connection, shares: Shares, server: str) -> None:
        """`server` is the id of this server, which completes the responses that it adds."""
        super().__init__(connection)
        self._executemany = connection.executemany
        self._shares = shares
        self._server = server

    # --- writing

    def add(
        self,
        owner: str,
        response_id: str,
        items: Sequence[dict[str, Any]],
        previous: str | None,
        *,
        pinned: bool,
    ) -> bool:
        """Store the input of a response; return False if it cannot fit.

        A pinned response is not evicted before it is complete.
        """
        encoded = [msgspec.json.encode(item) for item in items]
        size = ITEM_BYTES + _size(items, encoded)
        # The API process before may have left it, if it is made again.
        self.drop_incomplete(owner, response_id)
        if not self._make_room(owner, size):
            return False
        (number,) = self._execute(
            "INSERT INTO responses (id, owner, server, previous, complete, pinned, size, "
            "num_input, num_items) VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?) RETURNING number",
            (
                response_id,
                owner,
                self._server,
                None if previous is None else index_key(previous),
                int(pinned),
                size,
                len(items),
                len(items),
            ),
        ).fetchone()
        self._add_items(number, 0, items, encoded)
        self._count(owner, size)
        return True

    def complete(self, response: dict[str, Any]) -> bool:
        """Store a complete response, unless its input has been evicted; return whether it is."""
        row = self._execute(
            "SELECT number, owner, num_input, pinned FROM responses WHERE id = ? AND complete = 0",
            (response["id"],),
        ).fetchone()
        if row is None:
            return False
        number, owner, num_input, pinned = row
        output = response["output"]
        encoded = [msgspec.json.encode(item) for item in output]
        head = msgspec.json.encode({**response, "output": []})
        size = len(head) + _size(output, encoded)
        # It is not evicted for its own output.
        if not self._make_room(owner, size, spared=number) and not pinned:
            self.delete("number = ?", number)
            return False
        self._execute(
            "UPDATE responses SET complete = 1, pinned = 0, response = ?, size = size + ?, "
            "num_items = ? WHERE number = ?",
            (head, size, num_input + len(output), number),
        )
        self._add_items(number, num_input, output, encoded, is_output=1)
        self._count(owner, size)
        return True

    def drop_incomplete(self, owner: str, response_id: str) -> None:
        """Delete a response that is not complete, if there is one."""
        self.delete("id = ? AND owner = ? AND complete = 0", response_id, owner)

    def delete(self, which: str, *values: str | int) -> bool:
        """Delete responses by a condition; return whether there were any."""
        gone = self._execute(
            f"DELETE FROM responses WHERE {which} RETURNING number, owner, size", values
        ).fetchall()
        for number, owner, size in gone:
            self._execute("DELETE FROM items WHERE response = ?", (number,))
            self._count(owner, -size)
        return bool(gone)

    def _add_items(
        self,
        number: int,
        first: int,
        items: Sequence[dict[str, Any]],
        encoded: Sequence[bytes],
        is_output: int = 0,
    ) -> None:
        self._executemany(
            "INSERT INTO items (response, position, id, is_output, item) VALUES (?, ?, ?, ?, ?)",
            [
                (number, first + i, index_key(items[i]["id"]), is_output, item)
                for i, item in enumerate(encoded)
            ],
        )

    def _count(self, owner: str, size: int) -> None:
        self._execute(
            "INSERT INTO owners (owner, size) VALUES (?, ?) "
            "ON CONFLICT (owner) DO UPDATE SET size = owners.size + excluded.size",
            (owner, size),
        )
        if size < 0:
            self._execute("DELETE FROM owners WHERE owner = ? AND size <= 0", (owner,))

    def _make_room(self, owner: str, size: int, spared: int = -1) -> bool:
        """Evict the owner's oldest responses until `size` bytes fit; return whether they do.

        Nothing is evicted if that cannot make enough room; `spared` never is.
        """
        own, total = self._execute(
            "SELECT COALESCE(SUM(CASE WHEN owner = ? THEN size END), 0), COALESCE(SUM(size), 0) "
            "FROM owners",
            (owner,),
        ).fetchone()
        excess = size + max(int(own) - self._shares.of_owner, int(total) - self._shares.total)
        if excess <= 0:
            return True
        (evictable,) = self._execute(
            "SELECT COALESCE(SUM(size), 0) FROM responses "
            "WHERE owner = ? AND pinned = 0 AND number <> ?",
            (owner, spared),
        ).fetchone()
        if excess > int(evictable):
            return False
        while excess > 0:
            number, freed = self._execute(
                "SELECT number, size FROM responses WHERE owner = ? AND pinned = 0 "
                "AND number <> ? ORDER BY number LIMIT 1",
                (owner, spared),
            ).fetchone()
            self.delete("number = ?", number)
            excess -= freed
        return True

    # --- servers

    def beat(self, now_s: float) -> None:
        """Record that this server is alive."""
        self._execute(
            "INSERT INTO servers (id, seen_s) VALUES (?, ?) "
            "ON CONFLICT (id) DO UPDATE SET seen_s = excluded.seen_s",
            (self._server, now_s),
        )

    def delete_abandoned(self, silent_since_s: float) -> None:
        """Delete incomplete responses of servers that have not been alive since then."""
        self._execute("DELETE FROM servers WHERE seen_s < ?", (silent_since_s,))
        self.delete("complete = 0 AND server NOT IN (SELECT id FROM servers)")


def _size(items: Sequence[dict[str, Any]], encoded: Sequence[bytes]) -> int:
    """Return the stored size of items; the table and its indexes repeat the ids."""
    ids = sum(len(item["id"]) for item in items)
    return sum(map(len, encoded)) + 2 * ids + ITEM_BYTES * len(items)
