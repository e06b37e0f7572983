"""Responses in PostgreSQL: the suite of databases, several servers, and lost connections."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import HTTPException

pytest.importorskip("psycopg")
for folder in (Path(__file__).parent, Path(__file__).parents[1]):
    sys.path.insert(0, str(folder))

from engine_postgres import database as postgres  # noqa: E402 - needs psycopg
from engine_postgres.database import PostgresDatabase  # noqa: E402
from postgres_server import PostgresServer  # noqa: E402

from builtin_plugins.routes.responses.conformance import (  # noqa: E402
    CHECKS,
    Check,
    held,
    item,
    keep,
)
from builtin_plugins.routes.responses.routes import ResponsesRoutes  # noqa: E402
from builtin_plugins.routes.responses.store import SILENT_S, ResponseStore  # noqa: E402
from builtin_plugins.servers.http.server import HttpServer  # noqa: E402
from core.api import ConfigError, EngineConfig  # noqa: E402
from core.api.plugins import load_plan, make_plan  # noqa: E402
from core.testing.echo_engine import EchoEngine  # noqa: E402

CONNECTIONS = 3


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    # Not in pytest's folder, which other users cannot enter: the server refuses to run as root.
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        started = PostgresServer(Path(folder))
        yield started
        started.stop()


@pytest.fixture
def stores() -> Iterator[list[ResponseStore]]:
    """Stores to close at the end."""
    opened: list[ResponseStore] = []
    yield opened
    for store in opened:
        store.close()


@pytest.fixture
def open_store(server: PostgresServer, stores: list[ResponseStore]) -> Any:
    """Open a store of a new database, or of the one of a URL."""

    def opened(
        max_bytes: int = 1 << 20, owner_bytes: int | None = None, url: str = ""
    ) -> ResponseStore:
        database = PostgresDatabase(url or server.new_database(), CONNECTIONS)
        stores.append(ResponseStore(database, max_bytes, owner_bytes))
        return stores[-1]

    return opened


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_postgres_passes_the_database_suite(open_store: Any, check: Check) -> None:
    asyncio.run(check(open_store))  # type: ignore[arg-type]


def test_servers_share_responses_and_the_limit_of_an_owner(
    server: PostgresServer, open_store: Any
) -> None:
    url = server.new_database()
    both = [open_store(20_000, 5_000, url) for _ in range(2)]

    async def run() -> None:
        await asyncio.gather(
            *(keep(both[i % 2], i, 300, owner="ab"[i // 2 % 2]) for i in range(80))
        )
        for owner in "ab":
            assert await held(both[0], owner, 80) == await held(both[1], owner, 80)
        await keep(both[0], 100)
        await keep(both[1], 101, previous="resp_100")
        chain = await both[0].chain("a", "resp_101")
        assert chain is not None
        assert len(chain) == 2

    asyncio.run(run())
    counted = dict(server.execute("SELECT owner, size FROM engine_responses.owners", url))
    stored = server.execute(
        "SELECT owner, SUM(size)::bigint FROM engine_responses.responses GROUP BY owner", url
    )
    assert counted == dict(stored)
    assert max(counted.values()) <= 5_000
    orphans = server.execute(
        "SELECT COUNT(*) FROM engine_responses.items WHERE response NOT IN "
        "(SELECT number FROM engine_responses.responses)",
        url,
    )
    assert orphans == [(0,)]


def test_running_responses_of_a_dead_server_are_deleted_and_of_a_live_one_are_not(
    server: PostgresServer, open_store: Any
) -> None:
    url = server.new_database()
    dead, alive = (open_store(url=url) for _ in range(2))

    async def run() -> None:
        assert await dead.add("a", "resp_1", [item("in_1")], pinned=True)
        assert await alive.add("a", "resp_2", [item("in_2")], pinned=True)
        seen = f"UPDATE engine_responses.servers SET seen_s = seen_s - {SILENT_S + 1} WHERE id ="
        server.execute(f"{seen} '{dead._server}'", url)
        open_store(url=url)
        assert not await dead.complete({"id": "resp_1", "output": []})
        assert await alive.complete({"id": "resp_2", "output": []})

    asyncio.run(run())


def test_requests_never_use_more_connections_than_allowed(
    server: PostgresServer, open_store: Any
) -> None:
    url = server.new_database()
    server.execute(f"ALTER DATABASE {url.split('/')[3].partition('?')[0]} CONNECTION LIMIT 3")
    server.execute("CREATE ROLE guest LOGIN")  # a superuser has no limit
    server.execute("GRANT ALL ON DATABASE " + url.split("/")[3].partition("?")[0] + " TO guest")
    store = open_store(url=url.replace("user=engine", "user=guest"))

    async def run() -> None:
        await asyncio.gather(*(keep(store, i) for i in range(40)))
        assert await held(store, "a", 40) == list(range(40))

    asyncio.run(run())


def test_lost_connections_are_opened_again(server: PostgresServer, open_store: Any) -> None:
    store = open_store()

    async def run() -> None:
        for number in range(10):
            await keep(store, number)
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'engine'"
            )
        assert await held(store, "a", 10) == list(range(10))

    asyncio.run(run())


def test_stopped_server_refuses_reading_stores_nothing_and_comes_back(
    server: PostgresServer, open_store: Any
) -> None:
    store = open_store()

    async def run() -> None:
        await keep(store, 1)
        assert await store.add("a", "resp_2", [item("in_2")])
        server.stop()
        for read in (store.get("a", "resp_1"), store.chain("a", "resp_1")):
            with pytest.raises(HTTPException) as refused:
                await read
            assert refused.value.status_code == 503
            assert refused.value.headers == {"Retry-After": "1"}
        assert not await store.add("a", "resp_3", [item("in_3")])
        ended = asyncio.ensure_future(store.complete({"id": "resp_2", "output": []}))
        await asyncio.to_thread(server.start)
        assert await ended  # tried again until the server was back
        while True:
            try:
                assert await held(store, "a", 4) == [1, 2]
                break
            except HTTPException:
                await asyncio.sleep(0.05)

    try:
        asyncio.run(run())
    finally:
        server.start() if server._process is None else None


def test_frozen_server_holds_a_request_for_a_bounded_time(
    server: PostgresServer, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "TRANSACTION_S", 1.0)
    monkeypatch.setattr(postgres, "CONNECT_S", 2)
    store = open_store()

    async def run() -> None:
        await keep(store, 1)
        with server.frozen():
            with pytest.raises(HTTPException) as refused:
                await store.get("a", "resp_1")
            assert refused.value.status_code == 503
            assert not await store.add("a", "resp_2", [item("in_2")])
        while True:
            try:
                assert await store.get("a", "resp_1") is not None
                break
            except HTTPException:
                await asyncio.sleep(0.05)

    asyncio.run(run())


def test_work_that_fails_changes_nothing(server: PostgresServer) -> None:
    database = PostgresDatabase(server.new_database(), 1)

    def failing(connection: Any) -> None:
        connection.execute("INSERT INTO owners VALUES ('a', 1)")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.transaction(failing, writes=True)
    rows = database.transaction(
        lambda connection: connection.execute("SELECT * FROM owners").fetchall(), writes=False
    )
    assert rows == []
    database.close()


def test_tables_are_created_once_by_servers_that_start_together(server: PostgresServer) -> None:
    url = server.new_database()
    barrier = threading.Barrier(4)

    def start(_: int) -> PostgresDatabase:
        barrier.wait()
        return PostgresDatabase(url, 1)

    with ThreadPoolExecutor(4) as threads:
        for database in threads.map(start, range(4)):
            database.close()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("postgresql://user:hunter2@localhost/responses", "PGPASSWORD"),
        ("postgresql:///responses?password=hunter2", "PGPASSWORD"),
        ("postgresql:///responses?host=/nowhere", "reachable"),
        ("postgresql:///responses?no_such=1", "cannot be used"),
    ],
)
def test_unusable_url_is_refused_by_name_and_shows_no_password(url: str, named: str) -> None:
    with pytest.raises(ConfigError, match="--responses-store") as refused:
        PostgresDatabase(url, 1)
    assert named in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_other_format_of_the_tables_is_refused(server: PostgresServer) -> None:
    url = server.new_database()
    PostgresDatabase(url, 1).close()
    server.execute("UPDATE engine_responses.format SET version = 99", url)
    with pytest.raises(ConfigError, match="format 99"):
        PostgresDatabase(url, 1)


def test_two_api_servers_serve_each_others_responses_to_their_owner(
    server: PostgresServer,
) -> None:
    url = server.new_database()
    plan = make_plan(
        ["none", "routes_responses", "tool_parsers", "reasoning_parsers", "engine_postgres.plugin"]
    )
    config = EngineConfig(options={"responses_store": url, "api_key": ["one", "two"]})

    def client() -> httpx.AsyncClient:
        engine = EchoEngine(config)
        engine.registry = load_plan(plan)
        app = HttpServer(engine, config, [ResponsesRoutes(engine, config)]).app
        transport = httpx.ASGITransport(app)
        return httpx.AsyncClient(transport=transport, base_url="http://test")

    async def run() -> None:
        async with client() as first, client() as second:
            one = {"Authorization": "Bearer one"}
            made = (await first.post("/v1/responses", json={"input": "a"}, headers=one)).json()
            path = f"/v1/responses/{made['id']}"
            assert (await second.get(path, headers=one)).json() == made
            assert (await second.get(path, headers={"x-api-key": "two"})).status_code == 404
            body = {"input": "b", "previous_response_id": made["id"]}
            assert (await second.post("/v1/responses", json=body, headers=one)).status_code == 200

    asyncio.run(run())
