"""`engine route` before engines that answer as they are told: who is asked, with what, and who is
asked instead.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from builtin_plugins.commands.route.app import Router, Rules
from builtin_plugins.commands.route.command import Route, listen, server_of
from builtin_plugins.commands.route.engines import Engines
from builtin_plugins.commands.route.prefix import PIECE_BYTES, Seen, prefix_keys
from builtin_plugins.commands.route.upstream import Address, Lost, ask
from core.api import ConfigError
from tests.patience import PATIENCE_S

OFFER = {"do_remote_prefill": True, "remote_engine_id": "p", "remote_block_ids": [1, 2]}
LONG = "once upon a time " * 100
Asked = list[tuple[str, dict[str, Any]]]


class Engine:
    """An engine that writes down what it is asked and answers with the next of `answers`, the last
    one for ever.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = [*answers]
        self.asked: Asked = []
        self.health: dict[str, Any] = {"status": "ready"}
        self.left = asyncio.Event()
        """A client has gone before its answer was whole."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
        body = await reader.readexactly(length)
        path = head.split(" ")[1]
        if path != "/health":
            self.asked.append(
                (path, json.loads(body) if body[:1] == b"{" else {"raw": body.decode()})
            )
        answer = (
            self.health
            if path == "/health"
            else self.answers.pop(0)
            if len(self.answers) > 1
            else self.answers[0]
        )
        if isinstance(
            answer, list
        ):  # a stream of pieces; None: it breaks off; ...: it goes on for ever
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: "
                b"chunked\r\n\r\n"
            )
            for piece in [*answer, b""]:
                if piece is None:
                    break
                if piece is ...:
                    await reader.read()
                    self.left.set()
                    break
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
        elif answer is not None:
            status, said = answer if isinstance(answer, tuple) else (200, answer)
            text = json.dumps(said).encode()
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
        Address.of(f"http://127.0.0.1:{s.sockets[0].getsockname()[1]}", "--decode") for s in servers
    ]
    ahead = Engines(addresses[: len(prefill)])
    behind = Engines(addresses[len(prefill) :])
    router = Router(ahead, behind, Rules(retries, PATIENCE_S, PATIENCE_S, size))
    listener = listen("127.0.0.1", 0)
    server = server_of(router)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    own = Address.of(f"http://127.0.0.1:{listener.getsockname()[1]}", "--decode")
    try:
        yield SimpleNamespace(own=own, servers=servers, ahead=ahead, behind=behind)
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
    async with ask(at.own, b"POST", path.encode(), headers, data, PATIENCE_S) as answer:
        return answer.status, await answer.whole(), dict(answer.headers)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))  # type: ignore[arg-type]


def test_the_prompt_goes_to_one_engine_and_the_rest_to_another() -> None:
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
            status, said, headers = await post(at, body)
            assert (status, json.loads(said), headers[b"x-own"]) == (200, {"text": "hi"}, b"1")
            assert b"server" not in headers  # an engine's own would stand beside it
            chat = {"messages": [{"role": "user", "content": LONG}], "max_completion_tokens": 9}
            assert (await post(at, chat, "/v1/chat/completions"))[0] == 200
        (_, first), (_, second) = prefill.asked
        assert (first["max_tokens"], first["stream"], first["n"], first["prompt"]) == (
            1,
            False,
            1,
            LONG,
        )
        assert first["kv_transfer_params"]["do_remote_decode"] is True
        assert "min_tokens" not in first
        assert second["max_completion_tokens"] == 1
        assert decode.asked[0] == ("/v1/completions", {**body, "kv_transfer_params": OFFER})

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
def test_what_cannot_be_split_goes_to_a_decode_engine_as_it_came(path: str, body: Any) -> None:
    async def main() -> None:
        prefill = Engine({})
        decode = Engine({"text": "hi"})
        async with routing([prefill], [decode]) as at:
            assert (await post(at, body, path))[0] == 200
        assert prefill.asked == []
        assert decode.asked == [(path, {"raw": "no JSON"} if isinstance(body, bytes) else body)]

    run(main)


def test_streams_are_passed_on_as_they_come_and_end_when_the_client_leaves() -> None:
    async def main() -> None:
        decode = Engine([b"data: 1\n\n", ...])
        async with routing([], [decode]) as at:
            body = json.dumps({"prompt": "a", "stream": True}).encode()
            async with ask(at.own, b"POST", b"/v1/completions", [], body, PATIENCE_S) as answer:
                assert await anext(answer.pieces) == b"data: 1\n\n"
            await decode.left.wait()

    run(main)


@pytest.mark.parametrize(
    "answer", [None, (503, {}), (500, {}), (200, {"no": "offer"}), [b"x", None]]
)
def test_a_prompt_that_no_engine_computes_is_computed_where_it_goes_on(answer: Any) -> None:
    async def main() -> None:
        prefill = [Engine(answer), Engine(answer)]
        decode = Engine({"text": "hi"})
        async with routing(prefill, [decode]) as at:
            assert (await post(at, {"prompt": LONG}))[0] == 200
        assert decode.asked == [("/v1/completions", {"prompt": LONG})]
        asked = sum(len(engine.asked) for engine in prefill)
        assert asked == (1 if answer == (200, {"no": "offer"}) else 2)

    run(main)


def test_what_is_wrong_with_a_request_is_said_by_who_gets_it_as_it_came() -> None:
    async def main() -> None:
        prefill = Engine((400, {"error": "max_tokens"}))
        decode = Engine((400, {"error": "temperature"}))
        async with routing([prefill], [decode]) as at:
            status, said, _ = await post(at, {"prompt": "a"})
        assert (status, json.loads(said)) == (400, {"error": "temperature"})
        assert (len(prefill.asked), decode.asked) == (1, [("/v1/completions", {"prompt": "a"})])

    run(main)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("answer", [None, (503, {}), (429, {})])
def test_another_engine_is_asked_where_one_does_not_answer(answer: Any, stream: bool) -> None:
    async def main() -> None:
        right: Any = [b"data: hi\n\n"] if stream else {"text": "hi"}
        engines = [Engine(answer), Engine(right)]
        async with routing([], engines) as at:
            for _ in range(2):
                status, said, _ = await post(at, {"prompt": LONG, "stream": stream})
                assert (status, b"hi" in said) == (200, True)
        assert len(engines[1].asked) == 2
        assert engines[0].asked

    run(main)


def test_an_answer_that_breaks_off_is_asked_again_and_a_stream_says_so() -> None:
    async def main() -> None:
        async with routing([], [Engine([b"half", None], {"text": "hi"})]) as at:
            assert (await post(at, {"prompt": "a"}))[1] == b'{"text": "hi"}'
        async with routing([], [Engine([b"data: half\n\n", None])]) as at:
            status, said, _ = await post(at, {"prompt": "a", "stream": True})
            assert (status, said[:12]) == (200, b"data: half\n\n")
            assert "was lost" in json.loads(said[18:])["error"]["message"]

    run(main)


def test_where_nobody_answers_the_client_is_told_to_come_again() -> None:
    async def main() -> None:
        async with routing([], [Engine(None)], retries=1) as at:
            status, said, headers = await post(at, {"prompt": "a"})
            assert (status, headers[b"retry-after"]) == (503, b"1")
            assert "no engine answers" in json.loads(said)["error"]["message"]
            async with ask(at.own, b"GET", b"/health", [], b"", PATIENCE_S) as answer:
                shown = json.loads(await answer.whole())
            assert (answer.status, shown["decode"][0]["up"], shown["decode"][0]["lost"]) == (
                503,
                False,
                2,
            )
        async with routing([], [Engine((429, {"error": "full"}))], retries=1) as at:
            assert (await post(at, {"prompt": "a"}))[0] == 429
            async with ask(at.own, b"GET", b"/health", [], b"", PATIENCE_S) as answer:
                assert answer.status == 200

    run(main)


def test_what_engines_say_of_their_features_is_shown() -> None:
    async def main() -> None:
        features = {
            "kv_connector_info": {
                "state": "degraded",
                "reason": "dtype is float32 there and bfloat16 here",
            }
        }
        engine = Engine({})
        engine.health |= {"features": features}
        async with routing([], [engine]) as at, asyncio.timeout(PATIENCE_S):
            shown: Any = {}
            while shown.get("features") is None:
                async with ask(at.own, b"GET", b"/health", [], b"", PATIENCE_S) as answer:
                    (shown,) = json.loads(await answer.whole())["decode"]
            assert shown["features"] == features

    run(main)


def test_bodies_that_are_too_large_are_refused() -> None:
    async def main() -> None:
        engine = Engine({})
        async with routing([], [engine], size=1000) as at:
            status, said, _ = await post(at, {"prompt": LONG})
            assert (status, b"--max-request-bytes" in said, engine.asked) == (413, True, [])

    run(main)


def test_conversations_stay_where_their_beginning_was_seen_unless_that_engine_is_busy() -> None:
    engines = Engines([Address.of(f"http://host:{port}", "--decode") for port in (1, 2)])
    first, second = engines.all
    keys = {name: prefix_keys({"prompt": name * 3 * PIECE_BYTES}) for name in "ab"}
    assert [len(each) for each in keys.values()] == [3, 3]
    with first.busy(keys["a"]):
        assert engines.choose(keys["b"]) is second
        with second.busy(keys["b"]):
            assert engines.choose(keys["a"]) is first
            assert engines.choose(prefix_keys({"prompt": "a" * 9 * PIECE_BYTES})) is first
            with first.busy([]), first.busy([]):
                assert engines.choose(keys["a"]) is first
                with first.busy([]):
                    assert engines.choose(keys["a"]) is second
    first.lost("gone")
    assert engines.choose(keys["a"]) is second
    assert engines.choose(keys["a"], [second]) is None
    first.well()
    assert engines.choose(keys["a"], [second]) is first


def test_keys_stand_for_all_that_bears_on_a_prompt() -> None:
    body = {"messages": [{"role": "user", "content": LONG}], "model": "m"}
    keys = prefix_keys(body)
    seen = Seen()
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
        ({"decode": ["localhost:1"]}, "--decode 'localhost:1'"),
        ({"prefill": ["http://a/v1"]}, "--prefill 'http://a/v1'"),
        ({"prefill": ["http://a:99999"]}, "--prefill 'http://a:99999'"),
        ({"retries": -1}, "--retries"),
        ({"timeout": 0.0}, "--timeout"),
        ({"health_interval": float("nan")}, "--health-interval"),
        ({"port": 1 << 17}, "--port must be"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    known = {
        "prefill": [], "decode": ["http://127.0.0.1:1"], "host": "127.0.0.1", "port": 0, "retries": 3, "timeout": 1.0,
        "health_interval": 1.0, "max_request_bytes": 1,
    }  # fmt: skip
    with pytest.raises(ConfigError) as refused:
        Route().run(SimpleNamespace(args=SimpleNamespace(**known | arguments)))
    assert named in str(refused.value)


def test_what_the_server_logs_goes_where_all_goes() -> None:
    handlers = [
        logging.getLogger(name).handlers for name in ("uvicorn", "uvicorn.error", "uvicorn.access")
    ]
    before = [[*each] for each in handlers]
    server_of(None)
    assert handlers == before
    assert logging.getLogger("uvicorn.error").propagate


def test_an_engine_that_talks_no_http_is_lost() -> None:
    async def main() -> None:
        async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\x00" * 100 + b"\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        address = Address.of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "--decode")
        with pytest.raises(Lost, match="broke off"):
            async with ask(address, b"GET", b"/", [], b"", PATIENCE_S):
                pass
        server.close()

    run(main)
