"""Store of responses: owners, shares, and how much is read for a request."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi import HTTPException

from builtin_plugins.routes.responses import store as store_module
from builtin_plugins.routes.responses import table_reader
from builtin_plugins.routes.responses.conformance import CHECKS, Check, item, keep
from builtin_plugins.routes.responses.database import Connection
from builtin_plugins.routes.responses.databases import open_database
from builtin_plugins.routes.responses.sqlite_database import SqliteDatabase
from builtin_plugins.routes.responses.store import MAX_CHAIN_ITEMS, ResponseStore
from core.api import ConfigError, EngineConfig, InvalidRequest
from tests.timeouts import TIMEOUT_S

ITEMS = 320


def in_memory(max_bytes: int, owner_bytes: int | None = None) -> ResponseStore:
    return ResponseStore(SqliteDatabase(""), max_bytes, owner_bytes)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("in_file", [False, True], ids=["memory", "file"])
def test_sqlite_passes_the_database_suite(tmp_path: Path, in_file: bool, check: Check) -> None:
    def open_store(max_bytes: int, owner_bytes: int | None) -> ResponseStore:
        path = str(tmp_path / "stored") if in_file else ""
        return ResponseStore(SqliteDatabase(path), max_bytes, owner_bytes)

    asyncio.run(check(open_store))  # type: ignore[arg-type]


def test_responses_in_a_file_outlive_the_server(tmp_path: Path) -> None:
    def opened() -> ResponseStore:
        return ResponseStore(SqliteDatabase(str(tmp_path / "stored")), 10_000)

    async def run() -> None:
        store = opened()
        await keep(store, 1)
        await store.add("a", "resp_2", [item("in_2")], pinned=True)
        store.close()
        again = opened()
        assert await again.get("a", "resp_1") is not None
        assert await again.get("b", "resp_1") is None
        assert not await again.complete({"id": "resp_2", "output": []})  # ended with its server

    asyncio.run(run())


def test_full_disk_stores_nothing_and_fails_no_answer(tmp_path: Path) -> None:
    async def run() -> None:
        database = SqliteDatabase(str(tmp_path / "stored"))
        store = ResponseStore(database, 1 << 30)
        await keep(store, 1)
        database.transaction(
            lambda connection: connection.execute("PRAGMA max_page_count = 1"), writes=False
        )
        assert not await store.add("a", "resp_2", [item("in_2", 1 << 20)])
        assert await store.get("a", "resp_1") is not None

    asyncio.run(run())


class StuckDatabase(SqliteDatabase):
    """A database on a disk that does not answer while `answers` is cleared."""

    def __init__(self, *, commits: bool) -> None:
        """`commits`: a transaction changes the file before it gets stuck."""
        self.answers = threading.Event()
        self.answers.set()
        self._commits = commits
        super().__init__("")

    def transaction(self, work: Callable[[Connection], Any], *, writes: bool) -> Any:
        if not self._commits:
            self.answers.wait()
        result = super().transaction(work, writes=writes)
        self.answers.wait()
        return result


@pytest.mark.parametrize("commits", [False, True])
def test_stuck_disk_stores_nothing_and_holds_no_answer(
    monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    async def run() -> None:
        database = StuckDatabase(commits=commits)
        store = ResponseStore(database, 1 << 20)
        await keep(store, 1)
        monkeypatch.setattr(store_module, "MAX_WAIT_S", 0.01)
        database.answers.clear()
        assert not await store.add("a", "resp_2", [item("in_2")], pinned=True)
        with pytest.raises(HTTPException, match="503"):
            await store.get("a", "resp_1")
        monkeypatch.setattr(store_module, "MAX_WAIT_S", TIMEOUT_S)
        database.answers.set()
        assert await store.get("a", "resp_1") is not None
        assert not await store.complete({"id": "resp_2", "output": []})
        store.close()

    asyncio.run(run())


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all items that stores decode."""
    sizes: list[int] = []

    def decode(data: bytes) -> dict[str, Any]:
        sizes.append(len(data))
        found: dict[str, Any] = msgspec.json.decode(data)
        return found

    monkeypatch.setattr(table_reader, "decode_item", decode)
    return sizes


def test_page_reads_only_its_items(decoded: list[int]) -> None:
    async def run() -> list[int]:
        store = in_memory(1 << 24)
        for number in range(12):
            previous = f"resp_{number - 1}" if number else None
            await keep(store, number, previous=previous, num_items=ITEMS)
        chain = await store.chain("a", "resp_11")
        assert chain is not None
        reserved: list[int] = []
        for newest_first, after in ((True, None), (False, None), (False, f"in_5_{ITEMS - 1}")):
            page = await store.page(
                chain, newest_first=newest_first, after=after, limit=1, reserve=reserved.append
            )
            assert page is not None
            assert len(page.items) == 1
        return reserved

    reserved = asyncio.run(run())
    assert decoded == []
    assert max(reserved) < 100  # one item, not 12 * 320


def test_response_reads_only_its_output(decoded: list[int]) -> None:
    async def run() -> None:
        store = in_memory(1 << 24)
        await keep(store, 0, num_items=ITEMS)
        await keep(store, 1, previous="resp_0", num_items=ITEMS)
        assert await store.get("a", "resp_1") is not None

    asyncio.run(run())
    assert len(decoded) == 1


def test_chain_is_counted_before_it_is_read(decoded: list[int]) -> None:
    class Refused(Exception):
        pass

    def refuse(num_bytes: int) -> None:
        assert num_bytes > 2 * ITEMS * 100
        raise Refused

    async def run() -> None:
        store = in_memory(1 << 24)
        await keep(store, 0, num_items=ITEMS)
        await keep(store, 1, previous="resp_0", num_items=ITEMS)
        chain = await store.chain("a", "resp_1")
        assert chain is not None
        with pytest.raises(Refused):
            await store.read(chain, refuse)
        assert decoded == []
        long = [msgspec.structs.replace(chain[0], num_items=MAX_CHAIN_ITEMS + 1)]
        with pytest.raises(InvalidRequest, match="previous_response_id"):
            await store.read(long)

    asyncio.run(run())


def test_unusable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--responses-store"):
        SqliteDatabase(str(tmp_path / "no" / "folder"))
    path = str(tmp_path / "older")
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE responses (id TEXT)")
    database.close()
    with pytest.raises(ConfigError, match="format 0"):
        SqliteDatabase(path)


@pytest.mark.parametrize("kind", ["FIFO", "folder", "device", "NUL", "loop"])
def test_path_that_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "store"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind in ("device", "loop"):
        path.symlink_to("/dev/zero" if kind == "device" else path)
    with pytest.raises(ConfigError, match="--responses-store"):
        SqliteDatabase(f"{path}\0" if kind == "NUL" else str(path))


def test_url_without_its_plugin_names_the_plugin() -> None:
    config = EngineConfig(options={"responses_store": "postgresql://host/responses"})
    with pytest.raises(ConfigError, match="engine-postgres"):
        open_database(config, None)


def test_servers_open_a_new_file_at_the_same_time(tmp_path: Path) -> None:
    begin = threading.Barrier(8)

    def open_file(path: Path) -> None:
        begin.wait()
        SqliteDatabase(str(path), is_shared=True).close()

    with ThreadPoolExecutor(8) as threads:
        for i in range(20):
            list(threads.map(open_file, [tmp_path / f"{i}.sqlite"] * 8))
