"""Cost of long prompts: bounded, and none after the client disconnects."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.tokens.tokenize import TokenizeRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from tests.timeouts import TIMEOUT_S

NINE_MB = 9 * 2**20


class Counting:
    """Replaces a tokenizer's `encode` and counts its characters."""

    def __init__(self, encode: Any) -> None:
        self._encode = encode
        self.read = 0

    def __call__(self, text: str, add_special_tokens: bool = True) -> Any:
        self.read += len(text)
        return self._encode(text, add_special_tokens)


class Served:
    """Routes over a scripted engine with a counting tokenizer."""

    def __init__(self) -> None:
        self.engine = AsyncLLM(
            "scripted:",
            disable_frontend_multiprocessing=True,
            max_model_len=512,
            kv_cache_memory_bytes=1 << 24,
            num_threads=1,
            log_level="error",
        )
        self.counting = Counting(self.engine.tokenizer.encode)
        self.engine.tokenizer.encode = self.counting
        groups = [make(self.engine, self.engine.config) for make in (OpenAIRoutes, TokenizeRoutes)]
        self.app: Any = HttpServer(self.engine, self.engine.config, groups).app

    async def request_(self, path: str, **body: Any) -> httpx.Response:
        """Send one request."""
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test", timeout=TIMEOUT_S
        ) as client:
            return await client.post(path, json=body)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.engine.shutdown()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The event loop of the engine."""
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.mark.parametrize("route", ["completions", "chat"])
def test_truncated_prompt_keeps_its_end(served, loop, route):
    served.counting.read = 0
    text = ("some words " * (NINE_MB // 11))[:NINE_MB] + " the end"
    fields = {"truncate_prompt_tokens": 10, "max_tokens": 1, "return_token_ids": True}
    if route == "chat":
        reply = loop.run_until_complete(
            served.request_(
                "/v1/chat/completions", messages=[{"role": "user", "content": text}], **fields
            )
        )
        ids = reply.json()["prompt_token_ids"]
    else:
        reply = loop.run_until_complete(served.request_("/v1/completions", prompt=text, **fields))
        ids = reply.json()["choices"][0]["prompt_token_ids"]
        assert ids == list(text[-10:].encode())
    assert (len(ids), reply.json()["usage"]["prompt_tokens"]) == (10, 10)
    assert served.counting.read < 100_000


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_oversized_prompt_is_rejected_from_its_start(served, loop, path):
    served.counting.read = 0
    reply = loop.run_until_complete(served.request_(path, prompt="some words " * (NINE_MB // 11)))
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "prompt"
    assert served.counting.read < 100_000


def test_client_disconnect_aborts_tokenization(served, loop):
    """All threads are busy; clients that disconnect in the queue cost nothing."""

    async def leave() -> None:
        reader = served.engine._reader
        go = threading.Event()
        others = [
            asyncio.create_task(reader.run(lambda stopped: go.wait()))
            for _ in range(reader.num_threads)
        ]
        gone = asyncio.Event()
        body = json.dumps({"prompt": "x" * 100_000, "truncate_prompt_tokens": 10}).encode()
        tasks = []
        for _ in range(8):
            messages = iter([{"type": "http.request", "body": body, "more_body": False}])

            async def receive(messages: Iterator[Any] = messages) -> Any:
                for message in messages:
                    return message
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                pass

            scope = {
                "type": "http",
                "method": "POST",
                "path": "/v1/completions",
                "headers": [],
                "query_string": b"",
            }
            scope |= {
                "root_path": "",
                "scheme": "http",
                "server": ("test", 80),
                "client": ("10.0.0.1", 1),
            }
            tasks.append(asyncio.create_task(served.app(scope, receive, send)))
        async with asyncio.timeout(TIMEOUT_S):
            while reader._long_texts._slots.num_waiting < 8:
                await asyncio.sleep(0.001)
            served.counting.read = 0
            gone.set()
            await asyncio.gather(*tasks)
        assert reader._long_texts._slots.num_waiting == 0
        go.set()
        await asyncio.gather(*others)
        assert served.counting.read == 0

    loop.run_until_complete(leave())


def test_rows_are_shared_fairly_by_client_name(loop):
    """One request does not wait for fifty of another client."""
    engine = AsyncLLM(
        "scripted:",
        disable_frontend_multiprocessing=True,
        max_model_len=256,
        max_num_seqs=4,
        fair_rows=2,
        kv_cache_memory_bytes=1 << 24,
        num_threads=1,
        log_level="error",
    )
    from core import SamplingParams

    ended: list[str] = []

    async def request_(name: str, client: str) -> None:
        params = SamplingParams(max_tokens=8, ignore_eos=True)
        async for _ in engine.generate("say something", params, name, client=client):
            pass
        ended.append(name)

    async def both() -> None:
        await request_("first", "few")
        many = [asyncio.create_task(request_(f"many-{i}", "many")) for i in range(50)]
        await asyncio.sleep(0)
        await asyncio.gather(request_("few", "few"), *many)

    try:
        asyncio.run(both())
        assert len(ended) == 52
        assert ended.index("few") < 15
    finally:
        engine.shutdown()
