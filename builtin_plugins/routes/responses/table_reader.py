"""Reads stored responses and their items within one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import msgspec

from builtin_plugins.routes.responses.database import Connection

MAX_CHAIN: Final = 1000
"""Largest number of responses in a chain, each of which continues the one before."""
MAX_KEY_CHARS: Final = 256
"""Longest id that is an index key; longer ones are hashed."""
_MAX_KEYS: Final = 500
"""Largest number of keys in one statement."""


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


class TableReader:
    """Reads the tables of a database."""

    def __init__(self, connection: Connection) -> None:
        self._execute = connection.execute

    def chain(self, owner: str, response_id: str) -> list[Link] | None:
        """Return a response after all those it continues; None if one of them is missing."""
        rows = self._execute(
            "WITH RECURSIVE chain (depth, number, previous, size, num_input, num_items) AS ("
            "SELECT 0, number, previous, size, num_input, num_items FROM responses "
            "WHERE id = ? AND owner = ? AND complete = 1 UNION ALL "
            "SELECT chain.depth + 1, r.number, r.previous, r.size, r.num_input, r.num_items "
            "FROM chain JOIN responses r ON r.id = chain.previous "
            "WHERE r.owner = ? AND r.complete = 1 AND chain.depth < ?) "
            "SELECT number, previous, size, num_input, num_items FROM chain ORDER BY depth",
            (index_key(response_id), owner, owner, MAX_CHAIN),
        ).fetchall()
        if not rows or len(rows) > MAX_CHAIN or rows[-1][1] is not None:
            return None
        return [Link(*row) for row in reversed(rows)]

    def link(self, owner: str, response_id: str) -> Link | None:
        """Return a complete response of an owner, or None."""
        row = self._execute(
            "SELECT number, previous, size, num_input, num_items FROM responses "
            "WHERE id = ? AND owner = ? AND complete = 1",
            (index_key(response_id), owner),
        ).fetchone()
        return None if row is None else Link(*row)

    def response_size(self, link: Link) -> int:
        """Return the bytes of a response with its output."""
        (size,) = self._execute(
            "SELECT COALESCE(SUM(LENGTH(response)), 0) FROM responses WHERE number = ?",
            (link.number,),
        ).fetchone()
        return int(size) + sum(self.sizes([(link, link.num_input, link.num_items)]))

    def response(self, link: Link) -> dict[str, Any] | None:
        """Return a response with its output; None if it was deleted."""
        row = self._execute(
            "SELECT response FROM responses WHERE number = ?", (link.number,)
        ).fetchone()
        if row is None:
            return None
        response: dict[str, Any] = msgspec.json.decode(row[0])
        rows = self.rows([(link, link.num_input, link.num_items)])
        response["output"] = [decode_item(item) for item in rows]
        return response

    def stored(self, link: Link) -> StoredResponse | None:
        """Return a response with its input; None if it was deleted."""
        response = self.response(link)
        if response is None:
            return None
        rows = self.rows([(link, 0, link.num_input)])
        return StoredResponse(response, [decode_item(item) for item in rows])

    def outputs(self, owner: str, ids: Collection[str]) -> dict[str, tuple[int, int, int]]:
        """Return response, position and size of output items, by id."""
        by_key = {index_key(each): each for each in ids}
        found: dict[str, Sequence[int]] = {}
        for keys in _portions(list(by_key)):
            rows = self._execute(
                "SELECT i.id, i.response, i.position, LENGTH(i.item) FROM items i "
                "JOIN responses r ON r.number = i.response "
                f"WHERE i.is_output = 1 AND i.id IN ({_marks(keys)}) AND r.owner = ?",
                (*keys, owner),
            ).fetchall()
            found |= {by_key[key]: place for key, *place in rows}
        return {each: (number, position, size) for each, (number, position, size) in found.items()}

    def read_outputs(self, places: dict[str, tuple[int, int, int]]) -> dict[str, dict[str, Any]]:
        """Return output items, by id."""
        found = {}
        for each, (number, position, _) in places.items():
            row = self._execute(
                "SELECT item FROM items WHERE response = ? AND position = ?", (number, position)
            ).fetchone()
            if row is not None:
                found[each] = decode_item(row[0])
        return found

    def position(self, chain: Sequence[Link], counts: Sequence[int], item_id: str) -> int | None:
        """Return the position of the first item of this id in a chain."""
        positions: dict[int, int] = {}
        for numbers in _portions([link.number for link in chain]):
            positions |= dict(
                self._execute(
                    "SELECT response, MIN(position) FROM items "
                    f"WHERE id = ? AND response IN ({_marks(numbers)}) GROUP BY response",
                    (index_key(item_id), *numbers),
                ).fetchall()
            )
        first = 0
        for link, count in zip(chain, counts, strict=True):
            if positions.get(link.number, count) < count:
                return first + positions[link.number]
            first += count
        return None

    def sizes(self, places: Sequence[tuple[Link, int, int]]) -> list[int]:
        """Return the bytes of items in ranges of positions."""
        return [
            int(
                self._execute(
                    "SELECT COALESCE(SUM(LENGTH(item)), 0) FROM items "
                    "WHERE response = ? AND position >= ? AND position < ?",
                    (link.number, start, end),
                ).fetchone()[0]
            )
            for link, start, end in places
        ]

    def rows(self, places: Sequence[tuple[Link, int, int]]) -> list[bytes]:
        """Return the JSON text of the items in ranges of positions."""
        return [
            item
            for link, start, end in places
            for (item,) in self._execute(
                "SELECT item FROM items WHERE response = ? AND position >= ? AND position < ? "
                "ORDER BY position",
                (link.number, start, end),
            ).fetchall()
        ]


def decode_item(item: bytes) -> dict[str, Any]:
    """Return an item."""
    found: dict[str, Any] = msgspec.json.decode(item)
    return found


def index_key(client_id: str) -> str:
    """Return the index key of an id, which a client may have made.

    Indexes of PostgreSQL hold no long texts, and its texts no NUL.
    """
    if len(client_id) <= MAX_KEY_CHARS and "\0" not in client_id:
        return client_id
    digest = hashlib.sha256(client_id.encode(errors="surrogatepass")).hexdigest()
    return f"sha256:{digest}"


def _portions(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (keys[i : i + _MAX_KEYS] for i in range(0, len(keys), _MAX_KEYS))


def _marks(keys: Sequence[Any]) -> str:
    return ", ".join("?" * len(keys))
