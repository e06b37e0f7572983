"""`metrics` of answers: times and acceptance of draft tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from builtin_plugins.routes.openai.request_metrics import metrics_fields
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from core.api import CompletionOutput, RequestOutput
from core.config import EngineConfig
from core.types.outputs import RequestMetrics
from tests.timeouts import TIMEOUT_S

TIMES = {
    "time_to_first_token_ms",
    "generation_time_ms",
    "queue_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
}


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncLLM]:
    engine = AsyncLLM(
        "scripted:",
        disable_frontend_multiprocessing=True,
        max_model_len=256,
        num_gpu_blocks_override=64,
        num_threads=1,
    )
    yield engine
    engine.shutdown()


def post(engine: AsyncLLM, path: str, body: dict[str, Any], **options: Any) -> httpx.Response:
    config = EngineConfig(options=options)
    app = HttpServer(engine, engine.config, [OpenAIRoutes(engine, config)]).app

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://engine", timeout=TIMEOUT_S
        ) as client:
            return await client.post(path, json=body)

    return asyncio.run(send())


CHAT = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 8}


def test_whole_answers_have_times_if_enabled(engine: AsyncLLM) -> None:
    for path, body in (
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "one two three", "max_tokens": 8}),
    ):
        metrics = post(engine, path, body, enable_per_request_metrics=True).json()["metrics"]
        assert set(metrics) == TIMES
        # On a busy machine all tokens may arrive together, with no time between them.
        together = metrics["generation_time_ms"] == 0
        known = TIMES - {"mean_itl_ms", "tokens_per_second"} if together else TIMES
        assert all(metrics[name] >= 0 for name in known), metrics
        assert "metrics" not in post(engine, path, body).json()


def test_streams_have_them_next_to_the_usage(engine: AsyncLLM) -> None:
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    text = post(engine, "/v1/chat/completions", body, enable_per_request_metrics=True).text
    chunks = [
        json.loads(line.removeprefix("data: "))
        for line in text.splitlines()
        if line.startswith("data: {")
    ]
    assert set(chunks[-1]["metrics"]) == TIMES
    assert not any("metrics" in chunk for chunk in chunks[:-1])


def test_several_sequences_have_none(engine: AsyncLLM) -> None:
    body = {**CHAT, "n": 2}
    answer = post(engine, "/v1/chat/completions", body, enable_per_request_metrics=True).json()
    assert len(answer["choices"]) == 2
    assert "metrics" not in answer


def test_acceptance_of_draft_tokens_is_a_histogram_of_steps() -> None:
    counts = {
        "spec_decode_num_drafts": 10.0,
        "spec_decode_num_draft_tokens": 30.0,
        "spec_decode_num_accepted_tokens": 12.0,
        "spec_decode_num_accepted_tokens_per_pos/0": 7.0,
        "spec_decode_num_accepted_tokens_per_pos/1": 4.0,
        "spec_decode_num_accepted_tokens_per_pos/2": 1.0,
    }
    output = RequestOutput(
        "a", None, [1], None, [CompletionOutput(0, "", [1])], True, RequestMetrics(), counts=counts
    )
    found = metrics_fields(output, timing=False, drafts=True)["metrics"]["speculative_decoding"]
    assert found == {
        "mean_acceptance_length": 2.2,
        "draft_acceptance_rate": 0.4,
        "acceptance_histogram": [3, 3, 3, 1],
        "num_spec_steps": 10,
        "num_accepted_draft_tokens": 12,
        "num_draft_tokens": 30,
    }
    assert metrics_fields(output, timing=False, drafts=False) == {}
