"""Log-probabilities over HTTP: exact bytes and texts, of partial characters too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from builtin_plugins.routes.openai.logprobs import completion_logprobs
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.responses.routes import ResponsesRoutes
from builtin_plugins.servers.http.server import HttpServer
from core.api import Logprob
from tests.over_http import scripted_engine

TEXT = "a😊é"
BYTES = [list(bytes([byte])) for byte in TEXT.encode()]


@pytest.fixture(scope="module")
def app() -> Iterator[Any]:
    with scripted_engine([]) as engine:
        groups = [OpenAIRoutes(engine, engine.config), ResponsesRoutes(engine, engine.config)]
        yield HttpServer(engine, engine.config, groups).app


def post(app: Any, path: str, *, status: int = 200, **fields: Any) -> Any:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post(path, json=fields)

    answer = asyncio.run(send())
    assert answer.status_code == status, answer.text
    return answer.json()


def test_chat_bytes_are_those_of_each_token(app: Any) -> None:
    messages = [{"role": "user", "content": TEXT}]
    body = post(app, "/v1/chat/completions", messages=messages, logprobs=True, top_logprobs=2)
    content = body["choices"][0]["logprobs"]["content"]
    assert [token["bytes"] for token in content][: len(BYTES)] == BYTES
    assert content[0]["token"] == "a"
    for token in content:
        assert token["top_logprobs"][0]["bytes"] == token["bytes"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "logprobs": True},
        ),
        ("/v1/responses", {"input": "a"}),
    ],
)
def test_too_many_alternatives_name_the_field(app: Any, path: str, fields: dict[str, Any]) -> None:
    error = post(app, path, status=400, top_logprobs=1000, **fields)["error"]
    assert error["param"] == "top_logprobs"


def test_responses_bytes_are_those_of_each_token(app: Any) -> None:
    include = ["message.output_text.logprobs"]
    body = post(app, "/v1/responses", input=TEXT, include=include, top_logprobs=1)
    logprobs = body["output"][0]["content"][0]["logprobs"]
    assert [token["bytes"] for token in logprobs][: len(BYTES)] == BYTES


@pytest.mark.parametrize("echo", [False, True])
def test_completion_spells_parts_of_characters_and_keeps_offsets(app: Any, echo: bool) -> None:
    body = post(app, "/v1/completions", prompt=TEXT, logprobs=4, max_tokens=64, echo=echo)
    choice = body["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"][:3] == ["a", r"bytes:\xf0", r"bytes:\x9f"]
    for top in logprobs["top_logprobs"]:
        assert top is None or len(top) >= 4
    offsets = logprobs["text_offset"]
    assert offsets[:8] == [0, 1, 2, 2, 2, 2, 3, 3]
    assert offsets[-1] <= len(choice["text"])


def test_tokens_with_the_same_text_keep_their_own_entry() -> None:
    position = {
        7: Logprob(-0.1, 1, "\N{REPLACEMENT CHARACTER}", b"\xe2"),
        8: Logprob(-0.2, 2, "\N{REPLACEMENT CHARACTER}", b"\x80"),
        9: Logprob(-0.3, 3, "A", b"A"),
        10: Logprob(-0.4, 4, "A", b"A"),
    }
    found = completion_logprobs([7], [position], offset=0, as_ids=False)
    assert found["top_logprobs"] == [
        {r"bytes:\xe2": -0.1, r"bytes:\x80": -0.2, "A": -0.3, "token_id:10": -0.4}
    ]
