"""PostgreSQL as a database of stored responses: tables, connections, transactions."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from builtin_plugins.routes.api import Connection, DatabaseUnavailable
from core.api import ConfigError
from engine_postgres.deadlines import Deadlines

T = TypeVar("T")
_Link = psycopg.Connection[tuple[Any, ...]]

SCHEMA: Final = "engine_responses"
"""Schema of the tables."""
_VERSION: Final = 1
_LOCK: Final = 0x656E67696E65
"""Key of the advisory lock that one writing transaction at a time holds."""
TRANSACTION_S: Final = 10.0
"""Longest duration of a transaction."""
CONNECT_S: Final = 3
"""Timeout of a connection attempt."""
PAUSE_S: Final = 1.0
"""Pause after a failed attempt, in which transactions fail at once."""
_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS format (version INTEGER NOT NULL);
INSERT INTO format SELECT {_VERSION} WHERE NOT EXISTS (SELECT 1 FROM format);
CREATE TABLE IF NOT EXISTS responses (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id TEXT UNIQUE NOT NULL,
    owner TEXT NOT NULL, server TEXT NOT NULL, previous TEXT, complete SMALLINT NOT NULL,
    pinned SMALLINT NOT NULL, size BIGINT NOT NULL, num_input INTEGER NOT NULL,
    num_items INTEGER NOT NULL, response BYTEA);
CREATE INDEX IF NOT EXISTS responses_of ON responses (owner, number);
CREATE INDEX IF NOT EXISTS incomplete ON responses (server) WHERE complete = 0;
CREATE TABLE IF NOT EXISTS items (
    response BIGINT NOT NULL, position INTEGER NOT NULL, id TEXT NOT NULL,
    is_output SMALLINT NOT NULL, item BYTEA NOT NULL, PRIMARY KEY (response, position));
CREATE INDEX IF NOT EXISTS item_ids ON items (response, id);
CREATE INDEX IF NOT EXISTS outputs ON items (id) WHERE is_output = 1;
CREATE TABLE IF NOT EXISTS owners (owner TEXT PRIMARY KEY, size BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS servers (id TEXT PRIMARY KEY, seen_s DOUBLE PRECISION NOT NULL);
"""


class PostgresDatabase:
    """Up to `num_connections` connections, one for each thread that uses the database."""

    is_shared = True

    def __init__(self, url: str, num_connections: int) -> None:
        """Create the tables, if they are missing. Raises `ConfigError`."""
        self.num_connections = num_connections
        self._url = url
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: set[_Link] = set()
        self._retry_at_s = 0.0
        """Time before which no connection is attempted, after a failed attempt."""
        self._deadlines = Deadlines(TRANSACTION_S)
        try:
            _check(url)
            self._create_tables()
        except ConfigError:
            self.close()
            raise
        except (psycopg.Error, DatabaseUnavailable) as error:
            self.close()
            raise ConfigError(
                f"--responses-store: got a database that cannot be used: {error}; expected a "
                "PostgreSQL server that is reachable, and a database in which this user may "
                f"create the schema {SCHEMA}."
            ) from error

    def transaction(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        """Run work whole or not at all; transactions that write run one after the other.

        A transaction on a connection that turns out to be lost runs again on a new one, unless it
        may have been committed. Raises `DatabaseUnavailable`.
        """
        is_new = self._connection is None
        try:
            return self._transaction(work, writes)
        except _Lost as lost:
            if is_new or lost.is_committing:
                raise DatabaseUnavailable(str(lost.__cause__)) from lost
        try:
            return self._transaction(work, writes)
        except _Lost as lost:
            raise DatabaseUnavailable(str(lost.__cause__)) from lost

    def now_s(self, connection: Connection) -> float:
        """Return the server's time in seconds."""
        sql = "SELECT EXTRACT(EPOCH FROM clock_timestamp())::float8"
        return float(connection.execute(sql).fetchone()[0])

    def close(self) -> None:
        """Close all connections."""
        self._deadlines.close()
        with self._lock:
            for connection in self._open:
                connection.close()
            self._open.clear()

    # --- transactions

    def _transaction(self, work: Callable[[Connection], T], writes: bool) -> T:
        connection = self._connection or self._connect()
        is_committing = False
        try:
            with self._deadlines.limit(connection.fileno()):
                connection.execute("BEGIN")
                if writes:
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                result = work(_Statements(connection))
                is_committing = True
                connection.execute("COMMIT")
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction) as error:
            was_lost = connection.broken or connection.closed
            self._drop(connection)
            if was_lost:
                raise _Lost(is_committing) from error
            raise DatabaseUnavailable(str(error)) from error
        except BaseException:
            self._drop(connection)  # which rolls back
            raise
        return result

    # --- connections

    @property
    def _connection(self) -> _Link | None:
        """The connection of this thread."""
        found: _Link | None = getattr(self._local, "connection", None)
        return found

    def _connect(self) -> _Link:
        if time.monotonic() < self._retry_at_s:
            raise DatabaseUnavailable("the last attempt to connect has just failed")
        milliseconds = int(TRANSACTION_S * 1000)
        try:
            connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=CONNECT_S,
                application_name="engine",
                keepalives_idle=30,
                tcp_user_timeout=milliseconds,
                options=f"-c search_path={SCHEMA} -c statement_timeout={milliseconds} "
                f"-c idle_in_transaction_session_timeout={milliseconds}",
            )
        except psycopg.OperationalError as error:
            self._retry_at_s = time.monotonic() + PAUSE_S
            raise DatabaseUnavailable(str(error)) from error
        self._local.connection = connection
        with self._lock:
            self._open.add(connection)
        return connection

    def _drop(self, connection: _Link) -> None:
        self._local.connection = None
        with self._lock:
            self._open.discard(connection)
        with contextlib.suppress(psycopg.Error):
            connection.close()

    def _create_tables(self) -> None:
        """Create the tables unless another server has. Raises `ConfigError` for another format."""

        def create(connection: Connection) -> int:
            (schema,) = connection.execute(f"SELECT to_regnamespace('{SCHEMA}')::text").fetchone()
            if schema is None:
                connection.execute(f"CREATE SCHEMA {SCHEMA}")
            for statement in filter(str.strip, _TABLES.split(";")):
                connection.execute(statement)
            (version,) = connection.execute("SELECT version FROM format").fetchone()
            return int(version)

        version = self.transaction(create, writes=True)
        if self._connection is not None:
            self._drop(self._connection)  # this thread uses the database no more
        if version != _VERSION:
            raise ConfigError(
                f"--responses-store: got tables in format {version}; expected format {_VERSION}. "
                "Give another database."
            )


def _check(url: str) -> None:
    if "password" in conninfo_to_dict(url):
        raise ConfigError(
            "--responses-store: got a URL with a password; expected one without, since command "
            "lines are visible. Set PGPASSWORD, or write it to ~/.pgpass."
        )


class _Lost(Exception):
    """The connection of a transaction was lost."""

    def __init__(self, is_committing: bool) -> None:
        super().__init__()
        self.is_committing = is_committing
        """Whether the transaction may have been committed."""


class _Statements:
    """Executes statements with `?` for parameters."""

    def __init__(self, connection: _Link) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        """Execute a statement."""
        return self._connection.execute(_translated(sql), values, binary=True)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement once for each row of parameters."""
        with self._connection.cursor() as cursor:
            cursor.executemany(_translated(sql), rows)


@cache
def _translated(sql: str) -> Any:
    """Return a statement with psycopg's parameters; there are as many as lengths of lists."""
    return sql.replace("?", "%s")
