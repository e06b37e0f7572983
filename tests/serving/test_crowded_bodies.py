"""What a body holds is counted before it is parsed, and nobody waits for the counting."""

from __future__ import annotations

import asyncio
import json
import random

import msgspec
import pytest
from starlette.requests import Request

from builtin_plugins.routes import scan
from builtin_plugins.routes.body import read_request
from builtin_plugins.routes.scan import LIMITS, Most, limits_for, refuse_crowded
from core.api import InvalidRequest
from core.text.places import Places

TEN_MB = 10 * 2**20


class Beside:
    """Counts how often others have their turn while something is awaited."""

    def __init__(self):
        self.turns = 0

    async def count(self):
        while True:
            self.turns += 1
            await asyncio.sleep(0)


def look_at(body, limits=LIMITS):
    """How often others had their turn; raises as the look does."""

    async def look():
        beside = Beside()
        other = asyncio.create_task(beside.count())
        try:
            await refuse_crowded(body, limits)
        finally:
            other.cancel()
        return beside.turns

    return asyncio.run(look())


@pytest.mark.parametrize(
    ("body", "said"),
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
def test_bodies_that_hold_too_much_are_refused(body, said):
    with pytest.raises(InvalidRequest, match=f"more than [0-9]+ {said}"):
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
def test_a_large_text_may_hold_any_signs(text):
    body = b'{"prompt":"' + text.encode() + b'","max_tokens":1}'
    assert look_at(body) >= len(body) // scan.SLICE_BYTES


def test_the_largest_list_of_tokens_passes():
    look_at(json.dumps({"prompt": list(range(LIMITS[0].most - 10))}).encode())


def test_counting_lets_others_on_after_so_many_signs():
    """Work between two turns of others is bounded by count: so much memory, so many signs."""
    counted = 200_000
    body = b'["' + b"[" * counted + b'"' + b",[0]" * (counted - 10) + b"]"
    assert (
        look_at(body, [Most(b"[", counted, "lists")])
        >= len(body) // scan.SLICE_BYTES + counted // scan.SLICE_SIGNS
    )


def test_signs_are_counted_as_a_parser_counts_them(monkeypatch):
    monkeypatch.setattr(scan, "LARGE_BYTES", 0)
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
        look_at(body, [Most(b"[{", count + 1, "lists and objects")])
        with pytest.raises(InvalidRequest):
            look_at(body, [Most(b"[{", count, "lists and objects")])


def test_a_model_with_a_long_context_takes_more_tokens_in_one_body():
    body = json.dumps({"prompt": list(range(LIMITS[0].most + 10))}).encode()
    with pytest.raises(InvalidRequest):
        look_at(body)
    look_at(body, limits_for(2 * LIMITS[0].most))


class Fields(msgspec.Struct):
    prompt: str = ""


async def ask(reading, body, client=""):
    async def receive():
        return {"type": "http.request", "body": body}

    state = {"reading": reading, "client": client}
    return await read_request(
        Request({"type": "http", "headers": [], "state": state}, receive), Fields
    )


def test_large_bodies_are_read_one_after_the_other_and_small_ones_beside_them():

    async def main():
        reading = Places(1)
        async with reading.place():
            large = asyncio.create_task(ask(reading, b'{"prompt":"%s"}' % (b"a" * 200_000)))
            assert (await ask(reading, b'{"prompt":"a"}')).fields.prompt == "a"
            for _ in range(20):
                await asyncio.sleep(0)
            assert not large.done()
        assert len((await large).fields.prompt) == 200_000

    asyncio.run(main())


def test_a_client_with_many_large_bodies_lets_others_in_between():
    async def main():
        reading = Places(1)
        order = []

        async def read(client):
            await ask(reading, b'{"prompt":"%s"}' % (b"a" * 200_000), client)
            order.append(client)

        async with reading.place():
            asked = [
                asyncio.create_task(read(client)) for client in ("many", "many", "many", "one")
            ]
            for _ in range(20):
                await asyncio.sleep(0)
        await asyncio.gather(*asked)
        assert order == ["many", "one", "many", "many"]

    asyncio.run(main())


def test_a_crowded_body_is_a_400_that_says_how_much_there_may_be(api):
    reply = api.call("POST", "/v1/completions", content=b'{"prompt":[' + b"0," * 600_000 + b"0]}")
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == ("body", "invalid_value")
    assert str(LIMITS[0].most) in error["message"]


def test_a_large_body_is_read_as_a_small_one_is(api):
    reply = api.complete("x" * 120_000, temperature=-1)
    assert reply.json()["error"]["param"] == "temperature"
    reply = api.complete(list(range(200)) * 200)
    assert "256" in reply.json()["error"]["message"]
