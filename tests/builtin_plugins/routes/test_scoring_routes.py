"""`/generative_scoring` and `/v1/decisions`: probabilities as transformers computes them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from builtin_plugins.model_sources.demo import plugin as demo
from builtin_plugins.routes.scoring.decisions import LETTERS
from builtin_plugins.routes.scoring.routes import ScoringRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import AsyncLLM
from tests.in_process import send_to

MODEL = Path(demo.__file__).parent / "model"


class Api:
    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._app = HttpServer(engine, engine.config, [ScoringRoutes(engine, engine.config)]).app

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return send_to(self._app, "POST", path, json=body)


@pytest.fixture(scope="module")
def served() -> Iterator[Api]:
    engine = AsyncLLM(
        str(MODEL),
        dtype="float32",
        disable_frontend_multiprocessing=True,
        max_model_len=512,
        num_gpu_blocks_override=256,
        num_threads=1,
    )
    yield Api(engine)
    engine.shutdown()


@pytest.fixture(scope="module")
def reference() -> Any:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    return model.eval()


def next_logprobs(reference: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = reference(torch.tensor([ids])).logits[0, -1].double()
    return torch.log_softmax(logits, -1)


def test_scores_are_probabilities_of_transformers(served: Api, reference: Any) -> None:
    query = "The weather is "
    items = ["sunny", "a table"]
    labels = [11, 300, 7]
    body = {"query": query, "items": items, "label_token_ids": labels}
    for apply_softmax in (True, False):
        reply = served.post("/generative_scoring", {**body, "apply_softmax": apply_softmax})
        assert reply.status_code == 200, reply.text
        found = [each["score"] for each in reply.json()["data"]]
        for item, score in zip(items, found, strict=True):
            ids = asyncio.run(served.engine.tokenize(query + item, True))
            logprobs = next_logprobs(reference, ids)[labels]
            expected = torch.softmax(logprobs, -1)[0] if apply_softmax else logprobs[0].exp()
            assert math.isclose(score, float(expected), rel_tol=2e-3, abs_tol=1e-9)


def test_item_first_puts_the_item_before_the_query(served: Api) -> None:
    def scores(query: str, item: str, **more: Any) -> list[float]:
        body = {"query": query, "items": [item], "label_token_ids": [11, 300]}
        reply = served.post("/generative_scoring", {**body, **more}).json()
        return [each["score"] for each in reply["data"]]

    assert scores("sunny", "It is ", item_first=True) == scores("It is ", "sunny")
    assert scores("sunny", "It is ") != scores("It is ", "sunny")


QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "name": "rain", "instructions": "Does it rain?"},
    {
        "type": "choice",
        "instructions": "Which season?",
        "choices": [{"value": "summer", "description": "warm"}, {"value": "winter"}],
    },
    {
        "type": "score",
        "instructions": "How warm?",
        "levels": [{"label": "cold"}, {"label": "mild"}, {"label": "hot"}],
    },
]


def test_decisions_are_probabilities_of_letters(served: Api, reference: Any) -> None:
    body = {"model": str(MODEL), "input": "It is warm.", "questions": QUESTIONS}
    reply = served.post("/v1/decisions", body)
    assert reply.status_code == 200, reply.text
    rain, season, warm = reply.json()["answers"]
    assert (rain["type"], rain["name"], season["type"], warm["type"]) == (
        "predicate",
        "rain",
        "choice",
        "score",
    )
    assert season["choice"] in ("summer", "winter")
    for answer in (season, warm):
        assert math.isclose(sum(each["probability"] for each in answer["probabilities"]), 1.0)
        assert 0 <= answer["confidence"] <= 1
    assert math.isclose(
        warm["score"], sum(each["value"] * each["probability"] for each in warm["probabilities"])
    )
    question = "It is warm.\n\nQuestion: Does it rain?\nA: false\nB: true\n"
    question += "Answer with the letter of one option only."
    _, ids = asyncio.run(
        served.engine.render_chat(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            template_kwargs={"enable_thinking": False, "thinking": False},
        )
    )
    letters = [asyncio.run(served.engine.tokenize(letter, False))[0] for letter in LETTERS[:2]]
    expected = float(torch.softmax(next_logprobs(reference, ids)[letters], -1)[1])
    assert math.isclose(rain["probability"], expected, rel_tol=2e-3, abs_tol=1e-9)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/generative_scoring", {"items": []}, "items"),
        ("/generative_scoring", {"label_token_ids": []}, "label_token_ids"),
        ("/generative_scoring", {"label_token_ids": [10**7]}, "label_token_ids[0]"),
        ("/generative_scoring", {"label_token_ids": list(range(600))}, "body"),
        ("/v1/decisions", {"questions": []}, "questions"),
        ("/v1/decisions", {"questions": [{"type": "rank", "instructions": "a"}]}, "questions"),
        (
            "/v1/decisions",
            {
                "questions": [
                    {
                        "type": "choice",
                        "instructions": "a",
                        "choices": [{"value": "a"}, {"value": "a"}],
                    }
                ]
            },
            "questions[0].choices",
        ),
    ],
)
def test_wrong_request_names_the_field(
    served: Api, path: str, fields: dict[str, Any], param: str
) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/generative_scoring": {"query": "a", "items": ["b", "c"], "label_token_ids": [1]},
        "/v1/decisions": {"model": str(MODEL), "input": "a", "questions": QUESTIONS},
    }
    reply = served.post(path, {**bodies[path], **fields})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith(param)
