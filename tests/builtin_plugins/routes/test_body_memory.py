"""What a request sends counts with the memory that it takes, and nothing of it outlives its answer.

Peak memory of a server is measured in `tests/system/attacks/test_body_memory.py`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_plugins.routes.common.json_limits import decoded_bytes
from builtin_plugins.servers.http.errors import Refused
from builtin_plugins.servers.http.limits import Limits
from builtin_plugins.servers.http.throttle import BodyLimiter
from tests.builtin_plugins.routes.loop_lag import send
from tests.builtin_plugins.routes.test_loop_lag import CONTENT, bodies, documented
from tests.builtin_plugins.routes.test_two_keys import Served

NUM_VALUES = 1000
"""Length of a list or object that is large enough to belong to a body."""
BODY_BYTES = 60_000


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    found = Served()
    yield found
    found.engine.shutdown()


def sent(value: Any) -> bool:
    """Return whether a value is of a body, and not of a module that a request has imported."""
    start = str([*islice(value, 2)])
    return any(part in start for part in ("ab c", "'b'", "'role'", "k0", "0.12345", "[]"))


def large_garbage() -> list[Any]:
    """Return what of a body only the garbage collector can free, and free it."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return [
            type(each)
            for each in gc.garbage
            if isinstance(each, (list, dict)) and len(each) >= NUM_VALUES and sent(each)
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.slow
def test_no_body_waits_for_the_garbage_collector(served: Served) -> None:
    """A refused body once stayed in a cycle of its exception and its frames: hundreds at a time."""

    async def run() -> None:
        left = {}
        for path, fields in (await documented(served)).items():
            tried = [each for each in CONTENT if each in fields]
            cases = [*bodies(path, [*tried, "unknown_field"], BODY_BYTES)]
            gc.collect()
            gc.disable()
            try:
                for _, body in islice(cases, 1, None, 2):
                    await send(served.app, "POST", path, body, {"x-api-key": "two"})
                await asyncio.sleep(0)
                if found := large_garbage():
                    left[path] = found
            finally:
                gc.enable()
        assert left == {}

    asyncio.run(run())


def test_garbage_of_a_body_would_be_found() -> None:
    values: list[Any] = ["ab c"] * NUM_VALUES
    values.append(values)
    del values
    assert large_garbage() == [list]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=30)
@given(json_values)
def test_decoded_size_counts_every_value(value: Any) -> None:
    def size(item: Any) -> int:
        own = sys.getsizeof(item)
        if isinstance(item, dict):
            return 2 * own + sum(size(name) + size(inner) for name, inner in item.items())
        return 2 * own + sum(map(size, item)) if isinstance(item, list) else own

    assert decoded_bytes(value) == size(value)


def test_values_count_as_bytes_in_flight_and_one_request_alone_passes() -> None:
    limiter = BodyLimiter(Limits(100, 1, 1, 1.0, 1.0, 1, bytes_in_flight=1000, client_bytes=500))
    first = limiter.open("a")
    first.announce(100)
    first.announce_values(10_000)
    assert limiter.num_bytes == 500
    second = limiter.open("a")
    with pytest.raises(Refused):
        second.announce(100)
    first.release()
    second.announce(100)
    second.announce_values(-50)
    assert limiter.num_bytes == 100
    second.release()
    assert limiter.num_bytes == 0


def test_bodies_with_many_values_are_refused_while_others_are_prepared(served: Served) -> None:
    turn = {"role": "user", "content": "b"}
    body = json.dumps({"messages": [turn] * 3000, "max_tokens": 1}).encode()
    limiter = served.app.guard._body_limiter

    async def run() -> None:
        other = limiter.open("key")
        limit = served.app.limits
        other.announce(limit.client_bytes)
        rest = [
            limiter.open(f"key {i}") for i in range(limit.bytes_in_flight // limit.client_bytes)
        ]
        for each in rest[1:]:
            each.announce(limit.client_bytes)
        rest[0].release()
        assert limit.bytes_in_flight - limiter.num_bytes == 0
        other.release()
        other = limiter.open("key")
        other.announce(limit.client_bytes - 2 * len(body))
        status, _ = await send(
            served.app, "POST", "/v1/chat/completions", body, {"x-api-key": "two"}
        )
        assert status == 503
        for each in (other, *rest):
            each.release()
        status, _ = await send(
            served.app, "POST", "/v1/chat/completions", body, {"x-api-key": "two"}
        )
        assert status in (200, 400)
        assert limiter.num_bytes == 0

    asyncio.run(run())
