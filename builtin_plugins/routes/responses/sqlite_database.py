"""Responses in memory or in an SQLite file, for one server."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable
from typing import Final, TypeVar

from builtin_plugins.routes.responses.database import Connection, DatabaseUnavailable
from core.api import ConfigError

T = TypeVar("T")

_VERSION: Final = 2
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, owner TEXT NOT NULL, server TEXT NOT NULL,
    previous TEXT, complete INTEGER NOT NULL, pinned INTEGER NOT NULL, size INTEGER NOT NULL,
    num_input INTEGER NOT NULL, num_items INTEGER NOT NULL, response BLOB);
CREATE INDEX IF NOT EXISTS responses_of ON responses (owner, number);
CREATE INDEX IF NOT EXISTS incomplete ON responses (server) WHERE complete = 0;
CREATE TABLE IF NOT EXISTS items (
    response INTEGER NOT NULL, position INTEGER NOT NULL, id TEXT NOT NULL,
    is_output INTEGER NOT NULL, item BLOB NOT NULL, PRIMARY KEY (response, position)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS item_ids ON items (response, id);
CREATE INDEX IF NOT EXISTS outputs ON items (id) WHERE is_output = 1;
CREATE TABLE IF NOT EXISTS owners (owner TEXT PRIMARY KEY, size INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS servers (id TEXT PRIMARY KEY, seen_s REAL NOT NULL) WITHOUT ROWID;
"""


class SqliteDatabase:
    """One connection to an SQLite database."""

    num_connections = 1

    def __init__(self, path: str, *, is_shared: bool = False) -> None:
        """Open a file, or the memory if `path` is empty. Raises `ConfigError`.

        `is_shared`: other processes of this server use the file, too.
        """
        self.is_shared = is_shared
        try:
            if path:  # only readable by this user
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o600)
                is_regular = stat.S_ISREG(os.fstat(file).st_mode)
                os.close(file)
                if not is_regular:
                    raise ValueError("expected a regular file")
            self._connection = sqlite3.connect(
                path or ":memory:", check_same_thread=False, isolation_level=None
            )
            self._create_tables(path)
        except ConfigError:
            raise
        except (OSError, ValueError, sqlite3.Error, DatabaseUnavailable) as error:
            raise ConfigError(
                f"--responses-store {path!r:.300} cannot be used: {error}; give a file that can be "
                "written."
            ) from error

    def _create_tables(self, path: str) -> None:
        def create(connection: Connection) -> None:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (num_tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            if num_tables and version != _VERSION:
                raise ConfigError(
                    f"--responses-store: got {path} in format {version}; expected format "
                    f"{_VERSION}. Give another file."
                )
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")

        # whole or not at all: other servers may open the file at the same time
        self.transaction(create, writes=True)

    def transaction(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        """Run work whole or not at all. Raises `DatabaseUnavailable`, as for a full disk."""
        try:
            self._connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            try:
                result = work(self._connection)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise DatabaseUnavailable(str(error)) from error
        return result

    def now_s(self, connection: Connection) -> float:
        """Return the time in seconds."""
        return time.time()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
