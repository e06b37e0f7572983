"""Size limits of JSON bodies; counting yields to the event loop."""

from __future__ import annotations

import asyncio
import json
import random

import msgspec
import pytest
from starlette.requests import Request

from builtin_plugins.routes.common import json_limits
from builtin_plugins.routes.common.body import read_request
from builtin_plugins.routes.common.json_limits import LIMITS, SizeLimit, check_json_size, limits_for
from core.api import InvalidRequest
from core.frontend.fair_semaphore import FairSemaphore

TEN_MB = 10 * 2**20


class OtherTask:
    """Counts event loop iterations while something is awaited."""

    def __init__(self):
        self.turns = 0

    async def count(self):
        while True:
            self.turns += 1
            await asyncio.sleep(0)


def look_at(body, limits=LIMITS):
    """Return the number of loop iterations during a check; raises as the check does."""

    async def look():
        other_task = OtherTask()
        other = asyncio.create_task(other_task.count())
        try:
            await check_json_size(body, limits)
        finally:
            other.cancel()
        return other_task.turns

    return asyncio.run(look())


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"prompt":[' + b"0," * (TEN_MB // 2 - 10) + b"0]}", "values"),
        (b'{"prompt":[' + b"0," * (TEN_MB // 2 - 10), "values"),
        (b'{"messages":[' + b"{}," * (TEN_MB // 3 - 10) + b"{}]}", "lists and objects"),
        (b'{"a":' + b"[" * (TEN_MB - 10), "lists and objects"),
        (b"{" + b'"a":1,' * (TEN_MB // 6), "names"),
        (b'{"stop":[' + b'"",' * (TEN_MB // 3 - 10) + b'""]}', "values"),
        (b'{"stop":["\\"",' + b'"\\\\",' * (TEN_MB // 5 - 10) + b'""]}', "values"),
    ],
    ids=["tokens", "no end", "messages", "depth", "names", "texts", "escapes"],
)
def test_json_over_limits_is_rejected(body, kind):
    with pytest.raises(InvalidRequest, match=f"more than [0-9]+ {kind}"):
        look_at(body)


@pytest.mark.parametrize(
    "text",
    [
        "{[,:" * 2_000_000,
        "\\\\" * 1_000_000,
        '\\"[' * 1_000_000,
        "plain " * 1_000_000,
        "\\u6f22," * 1_000_000,
        "漢,[" * 900_000,
    ],
    ids=["signs", "backslashes", "quotes", "plain", "escapes", "unicode"],
)
def test_large_string_may_contain_any_characters(text):
    body = b'{"prompt":"' + text.encode() + b'","max_tokens":1}'
    assert look_at(body) >= len(body) // json_limits.SLICE_BYTES


def test_maximum_token_list_passes():
    look_at(json.dumps({"prompt": list(range(LIMITS[0].maximum - 10))}).encode())


def test_counting_yields_to_event_loop():
    """Work between two loop iterations is bounded by bytes and characters."""
    counted = 200_000
    body = b'["' + b"[" * counted + b'"' + b",[0]" * (counted - 10) + b"]"
    assert (
        look_at(body, [SizeLimit(b"[", counted, "lists")])
        >= len(body) // json_limits.SLICE_BYTES + counted // json_limits.SLICE_SIGNS
    )


def test_count_matches_json_parser(monkeypatch):
    monkeypatch.setattr(json_limits, "LARGE_BYTES", 0)
    rng = random.Random(3)

    def value(depth):
        kind = rng.randrange(6 if depth < 4 else 4)
        if kind < 2:
            return rng.randrange(100)
        if kind < 4:
            return "".join(rng.choice('a,:[]{}"\\\n漢 ') for _ in range(rng.randrange(9)))
        items = [value(depth + 1) for _ in range(rng.randrange(5))]
        return items if kind == 4 else {f"{i}:,": item for i, item in enumerate(items)}

    def containers(item):
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        return isinstance(item, (dict, list)) + sum(map(containers, inner))

    for _ in range(300):
        made = [value(0) for _ in range(4)]
        body = json.dumps(made, ensure_ascii=rng.random() < 0.5).encode()
        count = containers(made)
        look_at(body, [SizeLimit(b"[{", count + 1, "lists and objects")])
        with pytest.raises(InvalidRequest):
            look_at(body, [SizeLimit(b"[{", count, "lists and objects")])


def test_long_context_raises_token_limit():
    body = json.dumps({"prompt": list(range(LIMITS[0].maximum + 10))}).encode()
    with pytest.raises(InvalidRequest):
        look_at(body)
    look_at(body, limits_for(2 * LIMITS[0].maximum))


class Fields(msgspec.Struct):
    prompt: str = ""


async def send(reading, body, client=""):
    async def receive():
        return {"type": "http.request", "body": body}

    state = {"body_parsing": reading, "client_name": client}
    return await read_request(
        Request({"type": "http", "headers": [], "state": state}, receive), Fields
    )


def test_large_bodies_parse_serially_and_small_ones_concurrently():

    async def main():
        reading = FairSemaphore(1)
        async with reading.slot():
            large = asyncio.create_task(send(reading, b'{"prompt":"%s"}' % (b"a" * 200_000)))
            assert (await send(reading, b'{"prompt":"a"}')).fields.prompt == "a"
            for _ in range(20):
                await asyncio.sleep(0)
            assert not large.done()
        assert len((await large).fields.prompt) == 200_000

    asyncio.run(main())


def test_large_bodies_alternate_between_clients():
    async def main():
        reading = FairSemaphore(1)
        order = []

        async def read(client):
            await send(reading, b'{"prompt":"%s"}' % (b"a" * 200_000), client)
            order.append(client)

        async with reading.slot():
            tasks = [
                asyncio.create_task(read(client)) for client in ("many", "many", "many", "one")
            ]
            for _ in range(20):
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert order == ["many", "one", "many", "many"]

    asyncio.run(main())


def test_json_limit_error_is_400_with_limit(api):
    reply = api.call("POST", "/v1/completions", content=b'{"prompt":[' + b"0," * 600_000 + b"0]}")
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == ("body", "invalid_value")
    assert str(LIMITS[0].maximum) in error["message"]


def test_large_body_parses_like_small_body(api):
    reply = api.complete("x" * 120_000, temperature=-1)
    assert reply.json()["error"]["param"] == "temperature"
    reply = api.complete(list(range(200)) * 200)
    assert "256" in reply.json()["error"]["message"]
