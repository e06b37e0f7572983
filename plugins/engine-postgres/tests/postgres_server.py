"""A PostgreSQL server of its own for tests, which they stop, freeze and start again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

NO_USER = 65534
"""Number of the user and the group without rights."""
PATIENCE_S = 120.0
"""Limit of waits for conditions, on a busy machine."""


def programs() -> Path:
    """Return the folder of the server's programs; skip the test where there are none."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which("postgres")
    for folder in [*folders, *([Path(found).parent] if found else [])]:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    pytest.skip("no PostgreSQL server on this machine (Debian: apt-get install postgresql)")


class PostgresServer:
    """One server on a Unix socket, without durability."""

    def __init__(self, folder: Path) -> None:
        self._programs = programs()
        self._folder = folder
        self._data = folder / "data"
        self._user = {"user": NO_USER, "group": NO_USER} if os.getuid() == 0 else {}
        if self._user:  # the server refuses to run as root
            shutil.chown(folder, **self._user)
        self._process: subprocess.Popen[bytes] | None = None
        self._num_databases = 0
        self._run("initdb", "-D", str(self._data), "-U", "engine", "-A", "trust", "--no-sync")
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._programs / program, *arguments],
            cwd=self._folder,
            check=True,
            capture_output=True,
            **self._user,
        )

    def url(self, database: str = "postgres") -> str:
        return f"postgresql:///{database}?host={self._folder}&user=engine"

    def new_database(self) -> str:
        """Create a database; return its URL."""
        self._num_databases += 1
        name = f"responses_{self._num_databases}"
        self.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
        return self.url(name)

    def execute(self, sql: str, url: str = "") -> list[tuple[object, ...]]:
        with psycopg.connect(url or self.url(), autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        settings = ("listen_addresses=", f"unix_socket_directories={self._folder}", "fsync=off")
        flags = [part for setting in settings for part in ("-c", setting)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", str(self._data), *flags],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                **self._user,
            )
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.execute("SELECT 1")
            except psycopg.OperationalError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """Stop at once, as in a crash."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(PATIENCE_S)
            self._process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all processes of the server meanwhile: it accepts bytes and answers none."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pids = [pid, *map(int, children)]
        for each in pids:
            os.kill(each, signal.SIGSTOP)
        try:
            yield
        finally:
            for each in pids:
                os.kill(each, signal.SIGCONT)
