"""Store of responses: owners, shares, and how much is read for a request."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import msgspec
import pytest

from builtin_plugins.routes.responses import tables
from builtin_plugins.routes.responses.store import MAX_CHAIN_ITEMS, ResponseStore
from builtin_plugins.routes.responses.tables import ITEM_BYTES, StoredResponse
from core.api import ConfigError, InvalidRequest

ITEMS = 320


def item(name: str, size: int = 10) -> dict[str, Any]:
    return {"id": name, "text": "x" * size}


async def keep(
    store: ResponseStore,
    number: int,
    size: int = 10,
    *,
    owner: str = "a",
    previous: str | None = None,
    num_items: int = 1,
) -> StoredResponse:
    """Store a response with input items `in_NUMBER_I` and one output item `out_NUMBER`."""
    response_id = f"resp_{number}"
    response = {"id": response_id, "output": [item(f"out_{number}")]}
    items = [item(f"in_{number}_{i}", size) for i in range(num_items)]
    if await store.add(owner, response_id, items, previous):
        await store.complete(response)
    return StoredResponse(response, items)


async def held(store: ResponseStore, owner: str, count: int) -> list[int]:
    return [i for i in range(count) if await store.get(owner, f"resp_{i}") is not None]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all items that stores decode."""
    sizes: list[int] = []

    def decode(data: bytes) -> dict[str, Any]:
        sizes.append(len(data))
        found: dict[str, Any] = msgspec.json.decode(data)
        return found

    monkeypatch.setattr(tables, "decode_item", decode)
    return sizes


@pytest.mark.parametrize("in_file", [False, True])
def test_owner_over_share_replaces_own_oldest(tmp_path: Any, in_file: bool) -> None:
    path = str(tmp_path / "stored") if in_file else ""

    async def run() -> None:
        store = ResponseStore(path, 10_000, 2_500)
        for number in range(10):
            await keep(store, number, 200)
        await keep(store, 10, owner="b")
        assert await held(store, "a", 10) == [7, 8, 9][-len(await held(store, "a", 10)) :]
        assert len(await held(store, "a", 10)) >= 2
        for number in range(20, 60):
            await keep(store, number, 200, owner="b")
        assert 9 in await held(store, "a", 10)

    asyncio.run(run())
    if in_file:
        again = ResponseStore(path, 10_000, 2_500)
        assert asyncio.run(again.get("a", "resp_9")) is not None
        assert asyncio.run(again.get("b", "resp_9")) is None


def test_full_store_refuses_an_owner_and_drops_nothing() -> None:
    async def run() -> None:
        store = ResponseStore("", 2_000, 1_500)
        await keep(store, 0, 900)
        await keep(store, 1, 900, owner="b")
        assert await held(store, "a", 2) == [0]
        assert await held(store, "b", 2) == []
        assert not await store.add("a", "resp_2", [item("in", 3_000)])
        assert await held(store, "a", 3) == [0]

    asyncio.run(run())


def test_many_small_items_count_their_rows() -> None:
    store = ResponseStore("", 1 << 20, ITEM_BYTES * 100)
    items = [item("i", 0) for _ in range(100)]
    assert not asyncio.run(store.add("a", "resp_0", items))
    assert asyncio.run(store.add("a", "resp_0", items[:50]))


def test_running_background_response_is_not_evicted() -> None:
    async def run() -> None:
        store = ResponseStore("", 2_000)
        store.pin("resp_0")
        assert await store.add("a", "resp_0", [item("in_0", 900)])
        for number in range(1, 20):
            await keep(store, number, 300)
        await store.complete({"id": "resp_0", "output": [item("out_0", 1_500)]})
        assert 0 in await held(store, "a", 1)
        store.unpin("resp_0")
        await keep(store, 20, 500)
        assert await held(store, "a", 1) == []

    asyncio.run(run())


def test_store_without_bytes_stores_nothing() -> None:
    assert not asyncio.run(ResponseStore("", 0).add("a", "resp_0", []))


def test_incomplete_response_is_not_found() -> None:
    async def run() -> None:
        store = ResponseStore("", 10_000)
        await store.add("a", "resp_1", [item("in_1")])
        assert await store.get("a", "resp_1") is None
        assert await store.chain("a", "resp_1") is None
        await store.complete({"id": "resp_1", "output": []})
        await store.complete({"id": "resp_2", "output": []})  # never added
        assert await store.get("a", "resp_1") == {"id": "resp_1", "output": []}
        assert await store.get("a", "resp_2") is None

    asyncio.run(run())


def test_other_owners_find_nothing() -> None:
    async def run() -> None:
        store = ResponseStore("", 10_000)
        await keep(store, 1)
        assert await store.items("a", ["out_1", "in_1_0"]) == {"out_1": item("out_1")}
        assert await store.items("b", ["out_1"]) == {}
        assert await store.chain("b", "resp_1") is None
        await keep(store, 2, owner="b", previous="resp_1")
        assert await store.chain("b", "resp_2") is None
        assert not await store.delete("b", "resp_1")
        assert await store.get("b", "resp_1") is None
        assert await store.delete("a", "resp_1")
        assert await store.items("a", ["out_1"]) == {}

    asyncio.run(run())


def test_chain_with_missing_response_is_none() -> None:
    async def run() -> None:
        store = ResponseStore("", 10_000)
        first = await keep(store, 1)
        second = await keep(store, 2, previous="resp_1")
        chain = await store.chain("a", "resp_2")
        assert chain is not None
        assert await store.read(chain) == [first, second]
        await store.delete("a", "resp_1")
        assert await store.read(chain) is None
        assert await store.chain("a", "resp_2") is None

    asyncio.run(run())


def test_pages_walk_a_chain_in_both_orders() -> None:
    async def run() -> None:
        store = ResponseStore("", 1 << 20)
        expected: list[str] = []
        for number in range(4):
            previous = f"resp_{number - 1}" if number else None
            stored = await keep(store, number, previous=previous, num_items=number)
            expected += [each["id"] for each in stored.input]
            expected += [f"out_{number}"] if number < 3 else []
        chain = await store.chain("a", "resp_3")
        assert chain is not None
        for newest_first in (False, True):
            order = expected[::-1] if newest_first else expected
            for limit in range(1, len(expected) + 2):
                found: list[str] = []
                after = None
                while True:
                    page = await store.page(
                        chain, newest_first=newest_first, after=after, limit=limit
                    )
                    assert page is not None
                    found += page.ids
                    assert [msgspec.json.decode(each)["id"] for each in page.items] == page.ids
                    assert page.has_more == (len(found) < len(expected))
                    after = found[-1]
                    if not page.has_more:
                        break
                assert found == order
        unknown = await store.page(chain, newest_first=True, after="out_3", limit=1)
        assert unknown is None

    asyncio.run(run())


def test_page_reads_only_its_items(decoded: list[int]) -> None:
    async def run() -> list[int]:
        store = ResponseStore("", 1 << 24)
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
        store = ResponseStore("", 1 << 24)
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
        store = ResponseStore("", 1 << 24)
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


def test_unusable_file_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="--responses-store"):
        ResponseStore(str(tmp_path / "no" / "folder"), 1)
    path = str(tmp_path / "older")
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE responses (id TEXT)")
    database.close()
    with pytest.raises(ConfigError, match="format 0"):
        ResponseStore(path, 1)
