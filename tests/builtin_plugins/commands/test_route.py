"""`engine route` with fake engines: selection, forwarded requests and retries."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from builtin_plugins.clients.balancing import OPEN_REQUEST_TOKENS, CachedPrefixes
from builtin_plugins.commands.route.app import Router, Rules
from builtin_plugins.commands.route.command import Route, listen, server_of
from builtin_plugins.commands.route.engines import (
    PIECE_BYTES,
    PIECE_TOKENS,
    Engines,
    prefix_keys,
)
from builtin_plugins.commands.route.proxy import Address, Lost, call_engine
from core.api import ConfigError
from tests.timeouts import TIMEOUT_S

OFFER = {"do_remote_prefill": True, "remote_engine_id": "p", "remote_block_ids": [1, 2]}
LONG = "once upon a time " * 100
Requests = list[tuple[str, dict[str, Any]]]


class Engine:
    """Records its requests and returns the next of `answers`; repeats the last one."""

    def __init__(self, *answers: Any) -> None:
        self.answers = [*answers]
        self.requests: Requests = []
        self.health: dict[str, Any] = {"status": "ready"}
        self.disconnected = asyncio.Event()
        """Set when a client disconnects early."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
        body = await reader.readexactly(length)
        path = head.split(" ")[1]
        if path != "/health":
            self.requests.append(
                (path, json.loads(body) if body[:1] == b"{" else {"raw": body.decode()})
            )
        if path == "/health":
            answer: Any = self.health
        else:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        # A list is a stream of pieces. None breaks the connection; ... streams forever.
        if isinstance(answer, list):
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: "
                b"chunked\r\n\r\n"
            )
            for piece in [*answer, b""]:
                if piece is None:
                    break
                if piece is ...:
                    await reader.read()
                    self.disconnected.set()
                    break
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
        elif answer is not None:
            status, content = answer if isinstance(answer, tuple) else (200, answer)
            text = json.dumps(content).encode()
            writer.write(
                b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nx-own: 1\r\n\r\n%b"
                % (status, len(text), text)
            )
        writer.close()


@asynccontextmanager
async def routing(
    prefill: list[Engine], decode: list[Engine], retries: int = 2, size: int = 1 << 20
) -> AsyncIterator[Any]:
    servers = [
        await asyncio.start_server(engine.serve, "127.0.0.1", 0) for engine in (*prefill, *decode)
    ]
    addresses = [
        Address.parse(f"http://127.0.0.1:{s.sockets[0].getsockname()[1]}", "--decode")
        for s in servers
    ]
    prefill_engines = Engines(addresses[: len(prefill)])
    decode_engines = Engines(addresses[len(prefill) :])
    router = Router(prefill_engines, decode_engines, Rules(retries, TIMEOUT_S, TIMEOUT_S, size))
    listener = listen("127.0.0.1", 0)
    server = server_of(router)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    own = Address.parse(f"http://127.0.0.1:{listener.getsockname()[1]}", "--decode")
    try:
        yield SimpleNamespace(own=own, servers=servers)
    finally:
        server.should_exit = True
        await running
        for each in servers:
            each.close()


async def post(
    at: Any, body: Any, path: str = "/v1/completions"
) -> tuple[int, bytes, dict[bytes, bytes]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = [(b"authorization", b"Bearer key"), (b"content-type", b"application/json")]
    async with call_engine(at.own, b"POST", path.encode(), headers, data, TIMEOUT_S) as answer:
        return answer.status, await answer.whole(), dict(answer.headers)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))  # type: ignore[arg-type]


def test_prefill_and_decode_go_to_different_engines() -> None:
    async def main() -> None:
        prefill = Engine({"kv_transfer_params": OFFER})
        decode = Engine({"text": "hi"})
        body = {
            "prompt": LONG,
            "max_tokens": 9,
            "min_tokens": 2,
            "stream_options": {},
            "seed": 2**60,
        }
        async with routing([prefill], [decode]) as at:
            status, text, headers = await post(at, body)
            assert (status, json.loads(text), headers[b"x-own"]) == (200, {"text": "hi"}, b"1")
            assert b"server" not in headers  # an engine's own header is forwarded
            chat = {"messages": [{"role": "user", "content": LONG}], "max_completion_tokens": 9}
            assert (await post(at, chat, "/v1/chat/completions"))[0] == 200
        (_, first), (_, second) = prefill.requests
        assert (first["max_tokens"], first["stream"], first["n"], first["prompt"]) == (
            1,
            False,
            1,
            LONG,
        )
        assert first["kv_transfer_params"]["do_remote_decode"] is True
        assert "min_tokens" not in first
        assert second["max_completion_tokens"] == 1
        assert decode.requests[0] == ("/v1/completions", {**body, "kv_transfer_params": OFFER})

    run(main)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["a", "b"]}),
        ("/v1/completions", {"prompt": "a", "echo": True}),
        ("/v1/completions", {"prompt": "a", "prompt_logprobs": 1}),
        ("/v1/completions", {"prompt": "a", "kv_transfer_params": OFFER}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/completions?x=1", b"no JSON"),
    ],
)
def test_unsplittable_request_goes_to_a_decode_engine(path: str, body: Any) -> None:
    async def main() -> None:
        prefill = Engine({})
        decode = Engine({"text": "hi"})
        async with routing([prefill], [decode]) as at:
            assert (await post(at, body, path))[0] == 200
        assert prefill.requests == []
        assert decode.requests == [(path, {"raw": "no JSON"} if isinstance(body, bytes) else body)]

    run(main)


def test_streams_are_forwarded_and_end_on_client_disconnect() -> None:
    async def main() -> None:
        decode = Engine([b"data: 1\n\n", ...])
        async with routing([], [decode]) as at:
            body = json.dumps({"prompt": "a", "stream": True}).encode()
            async with call_engine(
                at.own, b"POST", b"/v1/completions", [], body, TIMEOUT_S
            ) as answer:
                assert await anext(answer.pieces) == b"data: 1\n\n"
            await decode.disconnected.wait()

    run(main)


@pytest.mark.parametrize(
    "answer", [None, (503, {}), (500, {}), (200, {"no": "offer"}), [b"x", None]]
)
def test_decode_engine_prefills_without_prefill_engines(answer: Any) -> None:
    async def main() -> None:
        prefill = [Engine(answer), Engine(answer)]
        decode = Engine({"text": "hi"})
        async with routing(prefill, [decode]) as at:
            assert (await post(at, {"prompt": LONG}))[0] == 200
        assert decode.requests == [("/v1/completions", {"prompt": LONG})]
        num_requests = sum(len(engine.requests) for engine in prefill)
        assert num_requests == (1 if answer == (200, {"no": "offer"}) else 2)

    run(main)


def test_invalid_request_is_rejected_by_the_decode_engine() -> None:
    async def main() -> None:
        prefill = Engine((400, {"error": "max_tokens"}))
        decode = Engine((400, {"error": "temperature"}))
        async with routing([prefill], [decode]) as at:
            status, text, _ = await post(at, {"prompt": "a"})
        assert (status, json.loads(text)) == (400, {"error": "temperature"})
        assert (len(prefill.requests), decode.requests) == (
            1,
            [("/v1/completions", {"prompt": "a"})],
        )

    run(main)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("answer", [None, (503, {}), (429, {})])
def test_failed_engine_is_retried_on_another(answer: Any, stream: bool) -> None:
    async def main() -> None:
        right: Any = [b"data: hi\n\n"] if stream else {"text": "hi"}
        engines = [Engine(answer), Engine(right)]
        async with routing([], engines) as at:
            for _ in range(2):
                status, text, _ = await post(at, {"prompt": LONG, "stream": stream})
                assert (status, b"hi" in text) == (200, True)
        assert len(engines[1].requests) == 2
        assert engines[0].requests

    run(main)


def test_broken_answer_is_retried_and_a_stream_reports_it() -> None:
    async def main() -> None:
        async with routing([], [Engine([b"half", None], {"text": "hi"})]) as at:
            assert (await post(at, {"prompt": "a"}))[1] == b'{"text": "hi"}'
        async with routing([], [Engine([b"data: half\n\n", None])]) as at:
            status, text, _ = await post(at, {"prompt": "a", "stream": True})
            assert (status, text[:12]) == (200, b"data: half\n\n")
            assert "was lost" in json.loads(text[18:])["error"]["message"]

    run(main)


def test_no_engine_answers_returns_503() -> None:
    async def main() -> None:
        async with routing([], [Engine(None)], retries=1) as at:
            status, text, headers = await post(at, {"prompt": "a"})
            assert (status, headers[b"retry-after"]) == (503, b"1")
            assert "no engine answers" in json.loads(text)["error"]["message"]
            async with call_engine(at.own, b"GET", b"/health", [], b"", TIMEOUT_S) as answer:
                state = json.loads(await answer.whole())
            assert (answer.status, state["decode"][0]["up"], state["decode"][0]["lost"]) == (
                503,
                False,
                2,
            )
        async with routing([], [Engine((429, {"error": "full"}))], retries=1) as at:
            assert (await post(at, {"prompt": "a"}))[0] == 429
            async with call_engine(at.own, b"GET", b"/health", [], b"", TIMEOUT_S) as answer:
                assert answer.status == 200

    run(main)


def test_health_shows_the_engines_features() -> None:
    async def main() -> None:
        features = {
            "kv_connector_info": {
                "state": "degraded",
                "reason": "dtype is float32 there and bfloat16 here",
            }
        }
        engine = Engine({})
        engine.health |= {"features": features}
        async with routing([], [engine]) as at, asyncio.timeout(TIMEOUT_S):
            state: Any = {}
            while state.get("features") is None:
                async with call_engine(at.own, b"GET", b"/health", [], b"", TIMEOUT_S) as answer:
                    (state,) = json.loads(await answer.whole())["decode"]
            assert state["features"] == features

    run(main)


def test_too_large_body_is_rejected() -> None:
    async def main() -> None:
        engine = Engine({})
        async with routing([], [engine], size=1000) as at:
            status, text, _ = await post(at, {"prompt": LONG})
            assert (status, b"--max-request-bytes" in text, engine.requests) == (413, True, [])

    run(main)


def test_prefix_affinity_yields_to_a_busy_engine() -> None:
    engines = Engines([Address.parse(f"http://host:{port}", "--decode") for port in (1, 2)])
    first, second = engines.all
    keys = {name: prefix_keys({"prompt": name * 3 * PIECE_BYTES}) for name in "ab"}
    assert [len(each) for each in keys.values()] == [3, 3]
    first.has_computed(keys["a"])
    second.has_computed(keys["b"])
    assert engines.choose(keys["b"]) is second
    assert engines.choose(keys["a"]) is first
    with ExitStack() as open_requests:
        for _ in range(3 * PIECE_TOKENS // OPEN_REQUEST_TOKENS - 1):
            open_requests.enter_context(first.busy())
        assert engines.choose(keys["a"]) is first
        for _ in range(50):
            open_requests.enter_context(first.busy())
        assert engines.choose(keys["a"]) is second
    assert engines.choose(keys["a"]) is first
    first.mark_lost("gone")
    assert engines.choose(keys["a"]) is second
    assert engines.choose(keys["a"], [second]) is None
    first.mark_healthy()
    assert engines.choose(keys["a"], [second]) is first


def test_conversations_stay_with_their_cache_and_servers_share_them() -> None:
    async def main() -> None:
        servers = [Engine({"text": "hi"}) for _ in range(4)]
        places = asyncio.Semaphore(16)
        history = ["".join(f" {number} of {i}" for i in range(20)) for number in range(50)]

        async def turn(number: int) -> None:
            history[number] += "".join(f" turn {number}.{i}" for i in range(150))
            async with places:
                status, _, _ = await post(at, {"prompt": SYSTEM + history[number]})
            assert status == 200

        async with routing([], servers) as at:
            for _ in range(8):
                await asyncio.gather(*(turn(number) for number in range(50)))
        sent = [[body["prompt"] for _, body in server.requests] for server in servers]
        assert max(map(len, sent)) <= 1.5 * min(map(len, sent))
        found = sum(map(cached_characters, sent))
        one_cache = cached_characters(sorted((p for each in sent for p in each), key=len))
        assert found >= 0.95 * one_cache

    run(main)


SYSTEM = "You are an assistant. " * 24


def cached_characters(prompts: list[str]) -> int:
    """Return how many characters a cache of blocks of 64 finds, if prompts come in this order."""
    cache: set[int] = set()
    found = 0
    for prompt in prompts:
        key = 0
        for start in range(0, len(prompt) - 63, 64):
            key = hash((key, prompt[start : start + 64]))
            found += 64 * (key in cache)
            cache.add(key)
    return found


def test_equal_prompts_at_once_are_shared_equally() -> None:
    async def main() -> None:
        servers = [Engine([b"data: hi\n\n", ...]) for _ in range(4)]
        body = json.dumps({"prompt": LONG, "stream": True}).encode()

        async def stream(at: Any) -> None:
            async with call_engine(
                at.own, b"POST", b"/v1/completions", [], body, TIMEOUT_S
            ) as answer:
                await anext(answer.pieces)

        async with routing([], servers) as at:
            await asyncio.gather(*(stream(at) for _ in range(64)))
        counts = [len(server.requests) for server in servers]
        assert sum(counts) == 64
        assert max(counts) - min(counts) <= 2

    run(main)


def test_prefix_keys_cover_all_prompt_inputs() -> None:
    body = {"messages": [{"role": "user", "content": LONG}], "model": "m"}
    keys = prefix_keys(body)
    seen = CachedPrefixes()
    seen.add(keys)
    longer = {**body, "messages": [*body["messages"], {"role": "assistant", "content": LONG}]}
    assert seen.match(prefix_keys(longer)) == len(keys)
    for other in ({"cache_salt": "s"}, {"model": "n"}, {"tools": [{}]}):
        assert seen.match(prefix_keys({**body, **other})) == 0
    assert prefix_keys({"prompt": [1, 2] * PIECE_BYTES}) != prefix_keys(
        {"prompt": [2, 1] * PIECE_BYTES}
    )
    assert prefix_keys({}) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"decode": []}, "--decode is missing"),
        ({"decode": ["localhost:1"]}, "--decode: got 'localhost:1'"),
        ({"prefill": ["http://a/v1"]}, "--prefill: got 'http://a/v1'"),
        ({"prefill": ["http://a:99999"]}, "--prefill: got 'http://a:99999'"),
        ({"retries": -1}, "--retries"),
        ({"timeout": 0.0}, "--timeout"),
        ({"health_interval": float("nan")}, "--health-interval"),
        ({"port": 1 << 17}, "--port must be"),
    ],
)
def test_invalid_flags_are_rejected_by_name(arguments: dict[str, Any], named: str) -> None:
    known = {
        "prefill": [],
        "decode": ["http://127.0.0.1:1"],
        "host": "127.0.0.1",
        "port": 0,
        "retries": 3,
        "timeout": 1.0,
        "health_interval": 1.0,
        "max_request_bytes": 1,
    }
    with pytest.raises(ConfigError) as caught:
        Route().run(SimpleNamespace(args=SimpleNamespace(**known | arguments)))
    assert named in str(caught.value)


def test_server_logs_use_the_engine_log() -> None:
    handlers = [
        logging.getLogger(name).handlers for name in ("uvicorn", "uvicorn.error", "uvicorn.access")
    ]
    before = [[*each] for each in handlers]
    server_of(None)
    assert handlers == before
    assert logging.getLogger("uvicorn.error").propagate


def test_non_http_engine_is_lost() -> None:
    async def main() -> None:
        async def send_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\x00" * 100 + b"\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(send_garbage, "127.0.0.1", 0)
        address = Address.parse(
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "--decode"
        )
        with pytest.raises(Lost, match="broke off"):
            async with call_engine(address, b"GET", b"/", [], b"", TIMEOUT_S):
                pass
        server.close()

    run(main)
