"""Contract of the databases that store responses; plugins add databases by the scheme of a URL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class DatabaseUnavailable(Exception):
    """The database did not answer; nothing was changed, or it is unknown whether it was."""


class Cursor(Protocol):
    """Rows that a statement returns."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Return all rows."""


class Connection(Protocol):
    """Executes statements of one transaction.

    Statements are SQL that SQLite and PostgreSQL share, with `?` for parameters.
    """

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        """Execute a statement."""

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> object:
        """Execute a statement once for each row of parameters."""


class Database(Protocol):
    """A database with the tables `responses`, `items`, `owners` and `servers`.

    `SqliteDatabase` shows their columns. Threads call `transaction`, `num_connections` at once.
    """

    num_connections: int
    """Largest number of transactions at once."""
    is_shared: bool
    """Whether other servers use the database."""

    def transaction(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        """Run work whole or not at all; transactions that write run one after the other.

        Raises `DatabaseUnavailable`; never waits longer than some seconds for a lost database.
        """

    def now_s(self, connection: Connection) -> float:
        """Return the database's time in seconds, the same for all servers."""

    def close(self) -> None:
        """Close all connections."""
