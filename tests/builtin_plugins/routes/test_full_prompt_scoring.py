"""Prompts that fill the whole context are scored like shorter ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from core.testing.checkpoints import make_checkpoint

MAX_LEN = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("Qwen3ForCausalLM", tmp_path_factory.mktemp("full") / "model", seed=2)


@pytest.fixture(scope="module")
def app(folder: Path) -> Iterator[Any]:
    engine = AsyncLLM(
        str(folder),
        max_model_len=MAX_LEN,
        dtype="float32",
        disable_frontend_multiprocessing=True,
        log_level="error",
    )
    try:
        yield HttpServer(engine, engine.config, [OpenAIRoutes(engine, engine.config)]).app
    finally:
        engine.shutdown()


def score(app: Any, prompt: list[int], **fields: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        body = {"prompt": prompt, "echo": True, "max_tokens": 0, "logprobs": 2, **fields}
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/v1/completions", json=body)

    return asyncio.run(send())


@torch.inference_mode()
def expected(folder: Path, prompt: list[int]) -> list[float]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    scores = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    return [float(scores[i, token]) for i, token in enumerate(prompt[1:])]


@pytest.mark.parametrize("length", [MAX_LEN - 1, MAX_LEN])
def test_every_token_of_a_prompt_is_scored(app: Any, folder: Path, length: int) -> None:
    prompt = list(range(40, 40 + length))
    body = score(app, prompt, return_token_ids=True).json()
    choice = body["choices"][0]
    values = choice["logprobs"]["token_logprobs"]
    assert values[0] is None
    assert values[1:] == pytest.approx(expected(folder, prompt), abs=1e-3)
    assert len(choice["logprobs"]["tokens"]) == length
    assert all(len(top) >= 2 for top in choice["logprobs"]["top_logprobs"][1:])
    assert choice["prompt_token_ids"] == prompt
    assert choice["finish_reason"] == "length"
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (length, 0)


def test_the_end_token_at_the_end_is_scored_like_others(app: Any, folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = [*range(40, 40 + MAX_LEN - 1), tokenizer.eos_token_id]
    choice = score(app, prompt, stop=["never"]).json()["choices"][0]
    values = choice["logprobs"]["token_logprobs"][1:]
    assert values == pytest.approx(expected(folder, prompt), abs=1e-3)


def test_one_more_token_is_refused(app: Any) -> None:
    answer = score(app, list(range(40, 41 + MAX_LEN)))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


def test_a_full_prompt_leaves_no_room_for_an_answer(app: Any) -> None:
    answer = score(app, list(range(40, 40 + MAX_LEN)), max_tokens=1)
    assert answer.status_code == 400
