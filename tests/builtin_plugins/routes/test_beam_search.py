"""`use_beam_search` over HTTP returns the answers of `LLM.beam_search`."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import LLM, AsyncLLM, BeamSearchParams

SMALL = {"max_model_len": 256, "num_gpu_blocks_override": 128, "num_threads": 1}
PROMPTS = ["The capital of France", "Say hello"]


@pytest.fixture(scope="module")
def post():
    engine = AsyncLLM("demo:", **SMALL, disable_frontend_multiprocessing=True)
    server = HttpServer(engine, engine.config, [OpenAIRoutes(engine, engine.config)])

    def call(path, **body):
        async def send():
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(server.app), base_url="http://test"
            ) as client:
                return await client.post(f"/v1/{path}", json=body)

        return asyncio.run(send())

    yield call
    engine.shutdown()


def test_beam_search_returns_most_likely_answers(post):
    params = BeamSearchParams(3, 6, length_penalty=0.5)
    with LLM("demo:", **SMALL) as llm:
        expected = llm.beam_search(PROMPTS, params)
        lengths = [len(llm.get_tokenizer().encode(prompt)) for prompt in PROMPTS]
    body = {
        "n": 3,
        "max_tokens": 6,
        "use_beam_search": True,
        "length_penalty": 0.5,
        "return_token_ids": True,
    }
    reply = post("completions", prompt=PROMPTS, logprobs=1, **body).json()
    found = [choice["token_ids"] for choice in reply["choices"]]
    assert found == [
        s.tokens[n:] for output, n in zip(expected, lengths, strict=True) for s in output.sequences
    ]
    assert [choice["index"] for choice in reply["choices"]] == list(range(6))
    assert reply["usage"]["completion_tokens"] == sum(map(len, found))
    assert [len(choice["logprobs"]["tokens"]) for choice in reply["choices"]] == list(
        map(len, found)
    )
    text = PROMPTS[0] + reply["choices"][0]["text"]
    assert text == expected[0].sequences[0].text


def test_chat_beam_search_streams_one_chunk(post):
    fields = {
        "messages": [{"role": "user", "content": "Say hello."}],
        "n": 2,
        "max_tokens": 8,
        "use_beam_search": True,
    }
    whole = post("chat/completions", **fields).json()
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert len(set(texts)) == 2
    streamed = post("chat/completions", **fields, stream=True).text
    assert all(repr(text)[1:-1] in streamed for text in texts)


def test_invalid_beam_search_fields_are_rejected(post):
    wide = post("completions", prompt="a", n=11, use_beam_search=True)
    assert (wide.status_code, wide.json()["error"]["param"]) == (400, "n")
    assert "reduce `n` to 10" in wide.json()["error"]["message"]
    part = post("completions", prompt="a", length_penalty=2)
    assert (part.status_code, part.json()["error"]["param"]) == (400, "length_penalty")
