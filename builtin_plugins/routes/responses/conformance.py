"""What every database of stored responses must do, as checks of a store that uses it.

`CHECKS` are coroutine functions. Each gets a function that opens a store with other contents, by
its bytes and those of one owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from builtin_plugins.routes.responses.store import ResponseStore
from builtin_plugins.routes.responses.table_reader import StoredResponse
from builtin_plugins.routes.responses.tables import ITEM_BYTES

OpenStore = Callable[[int, int | None], ResponseStore]
Check = Callable[[OpenStore], Awaitable[None]]


def item(name: str, size: int = 10) -> dict[str, Any]:
    """Return an item with a text of a size."""
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
    """Return the numbers below `count` of the responses that the owner has."""
    return [i for i in range(count) if await store.get(owner, f"resp_{i}") is not None]


async def check_owner_over_share_replaces_own_oldest(open_store: OpenStore) -> None:
    """The newest responses of an owner remain; those of other owners all do."""
    store = open_store(10_000, 2_500)
    for number in range(10):
        await keep(store, number, 200)
    own = await held(store, "a", 10)
    assert len(own) >= 2
    assert own == [7, 8, 9][-len(own) :]
    for number in range(20, 60):
        await keep(store, number, 200, owner="b")
    assert await held(store, "a", 10) == own


async def check_full_store_refuses_an_owner_and_evicts_nothing(open_store: OpenStore) -> None:
    """A response without room is not stored, even if its owner is within the share."""
    store = open_store(2_000, 1_500)
    await keep(store, 0, 900)
    await keep(store, 1, 900, owner="b")
    assert await held(store, "a", 2) == [0]
    assert await held(store, "b", 2) == []
    assert not await store.add("a", "resp_2", [item("in", 3_000)])
    assert await held(store, "a", 3) == [0]


async def check_small_items_count_their_rows(open_store: OpenStore) -> None:
    """Items without text take room too."""
    store = open_store(1 << 20, ITEM_BYTES * 100)
    items = [item("i", 0) for _ in range(100)]
    assert not await store.add("a", "resp_0", items)
    assert await store.add("a", "resp_0", items[:50])


async def check_deletions_free_the_share(open_store: OpenStore) -> None:
    """Deleted responses, complete or not, leave the whole share to later ones."""
    store = open_store(2_000, None)
    for number in range(20):
        assert await store.add("a", f"resp_{number}", [item(f"in_{number}", 1_200)])
        if number % 2:
            await store.complete({"id": f"resp_{number}", "output": []})
            assert await store.delete("a", f"resp_{number}")
        else:
            await store.discard(f"resp_{number}")


async def check_pinned_response_is_not_evicted(open_store: OpenStore) -> None:
    """A pinned response stays until it is complete, and its output is stored although it is
    over the share; then it can be evicted.
    """
    store = open_store(2_000, None)
    assert await store.add("a", "resp_0", [item("in_0", 900)], pinned=True)
    for number in range(1, 20):
        await keep(store, number, 300)
    assert await store.complete({"id": "resp_0", "output": [item("out_0", 1_500)]})
    assert await held(store, "a", 1) == [0]
    await keep(store, 20, 500)
    assert await held(store, "a", 1) == []


async def check_store_without_bytes_stores_nothing(open_store: OpenStore) -> None:
    """A size of 0 stores nothing."""
    assert not await open_store(0, None).add("a", "resp_0", [])


async def check_incomplete_response_is_not_found(open_store: OpenStore) -> None:
    """A response is found from its completion on; one that was never added is not stored."""
    store = open_store(10_000, None)
    await store.add("a", "resp_1", [item("in_1")])
    assert await store.get("a", "resp_1") is None
    assert await store.chain("a", "resp_1") is None
    assert await store.complete({"id": "resp_1", "output": []})
    assert not await store.complete({"id": "resp_2", "output": []})
    assert await store.get("a", "resp_1") == {"id": "resp_1", "output": []}
    assert await store.get("a", "resp_2") is None


async def check_other_owners_find_nothing(open_store: OpenStore) -> None:
    """Every look-up and deletion is by owner."""
    store = open_store(10_000, None)
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


async def check_chain_with_missing_response_is_none(open_store: OpenStore) -> None:
    """A chain is read whole or not at all."""
    store = open_store(10_000, None)
    first = await keep(store, 1)
    second = await keep(store, 2, previous="resp_1")
    chain = await store.chain("a", "resp_2")
    assert chain is not None
    assert await store.read(chain) == [first, second]
    await store.delete("a", "resp_1")
    assert await store.read(chain) is None
    assert await store.chain("a", "resp_2") is None


async def check_pages_walk_a_chain_in_both_orders(open_store: OpenStore) -> None:
    """Pages of every size have each item once, in order."""
    store = open_store(1 << 20, None)
    expected: list[str] = []
    for number in range(4):
        previous = f"resp_{number - 1}" if number else None
        stored = await keep(store, number, previous=previous, num_items=number)
        expected += [each["id"] for each in stored.input]
        expected += [f"out_{number}"] if number < 3 else []
    chain = await store.chain("a", "resp_3")
    assert chain is not None
    for newest_first in (False, True):
        for limit in range(1, len(expected) + 2):
            found: list[str] = []
            after = None
            while len(found) < len(expected):
                page = await store.page(chain, newest_first=newest_first, after=after, limit=limit)
                assert page is not None
                assert len(page.items) in (limit, len(expected) - len(found))
                assert [msgspec.json.decode(each)["id"] for each in page.items] == page.ids
                found += page.ids
                assert page.has_more == (len(found) < len(expected))
                after = found[-1]
            assert found == (expected[::-1] if newest_first else expected)
    assert await store.page(chain, newest_first=True, after="out_3", limit=1) is None


async def check_ids_and_texts_of_every_kind_are_stored(open_store: OpenStore) -> None:
    """Ids of clients may be long, equal, empty, or hold any character."""
    store = open_store(1 << 26, None)
    for number, name in enumerate(("", "x" * 300_000, "a\0b", "\U0001f600'\"%s?\\", "\ufffd")):
        items = [{"id": name, "text": "\0\U0001f600"} for _ in range(2)]
        response = {"id": f"resp_{number}", "output": items[:1]}
        assert await store.add("a", f"resp_{number}", items)
        assert await store.complete(response)
        chain = await store.chain("a", f"resp_{number}")
        assert chain is not None
        assert await store.read(chain) == [StoredResponse(response, items)]
        assert await store.items("a", [name]) == {name: items[0]}
        page = await store.page(chain, newest_first=False, after=name, limit=5)
        assert page is not None
        assert page.ids == [name]
        assert await store.chain("a", name) is None
        assert await store.get("a", name) is None
        assert not await store.delete("a", name)


async def check_shares_hold_with_concurrent_writers(open_store: OpenStore) -> None:
    """What concurrent requests store is never larger than the share, and none of them fails."""
    store = open_store(20_000, 5_000)
    work = [keep(store, i, 300, owner="ab"[i % 2]) for i in range(60)]
    await asyncio.gather(*work)
    for i in range(2):
        left = [n for n in await held(store, "ab"[i], 60) if n % 2 == i]
        assert 3 <= len(left) <= 5_000 // 450


CHECKS: Final[tuple[Check, ...]] = tuple(
    value for name, value in dict(globals()).items() if name.startswith("check_")
)
