"""`/score` and `/rerank` equal `LLM.score`, with the field names of vLLM, Jina, Cohere and TEI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core import PoolingParams
from tests.builtin_plugins.runners.pooling.served_pooling import Api, opened

Checkpoint = Callable[..., Path]
QUERY = "the other in the then"
TEXTS = ["in on the", "he then on", "an other at the, then"]


@pytest.fixture(
    scope="module", params=["BertModel", "BertForSequenceClassification"], ids=["cosine", "pairs"]
)
def api(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> Iterator[Api]:
    """An embedding model, and a cross-encoder."""
    folder = (
        checkpoint(request.param)
        if request.param == "BertModel"
        else checkpoint(request.param, num_labels=1)
    )
    with opened(folder) as engine:
        yield Api(engine)


def expected(api: Api, first: list[str], second: list[str], **params: Any) -> list[float]:
    """Return the engine's own scores."""

    async def collect() -> list[float]:
        async def one(prompt: Any, task: str) -> np.ndarray[Any, Any]:
            run = api.engine.encode(prompt, PoolingParams(task=task, **params), f"own-{prompt}")
            return np.asarray((await anext(run)).outputs.data)

        if "score" in api.engine.pooling.tasks:
            return [
                float((await one(pair, "score"))[0]) for pair in zip(first, second, strict=True)
            ]
        pairs = [
            (await one(a, "embed"), await one(b, "embed"))
            for a, b in zip(first, second, strict=True)
        ]
        return [float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in pairs]

    return asyncio.run(collect())


@pytest.mark.parametrize(
    ("first", "second"),
    [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")],
)
def test_score_routes_accept_all_field_names(api: Api, first: str, second: str) -> None:
    for one, other in ((QUERY, TEXTS[0]), (QUERY, TEXTS), (TEXTS, list(reversed(TEXTS)))):
        reply = api.good("/v1/score", **{first: one, second: other})
        left = (
            [one] * (1 if isinstance(other, str) else len(other)) if isinstance(one, str) else one
        )
        target = expected(api, left, [other] if isinstance(other, str) else other)
        assert [each["score"] for each in reply["data"]] == pytest.approx(target, abs=1e-5)
        assert [each["object"] for each in reply["data"]] == ["score"] * len(target)
    assert reply["usage"]["prompt_tokens"] > 0


def test_mismatched_pair_counts_are_rejected(api: Api) -> None:
    assert api.refused("/score", text_1=TEXTS[:2], text_2=TEXTS)[0] == "text_1"
    assert api.refused("/score", queries=QUERY, documents=[])[0] == "documents"
    assert api.refused("/score", queries=QUERY)[0] == "text_1"
    assert api.refused("/score", queries=QUERY, documents=TEXTS, text_1=QUERY)[0] == "text_1"
    assert api.refused("/score", text_1=QUERY, text_2=["a"] * 1025)[0] == "text_2"
    assert api.refused("/score", text_1=QUERY, text_2=["on " * 200])[0] == "text_2"
    assert api.refused("/score", data_1=QUERY, data_2=[{"type": "image_url"}])[0] == "data_2[0]"


def test_far_too_long_pairs_are_tokenized_only_partly(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = api.engine.tokenizer
    stored = []
    fitted = tokenizer.encode_fitted

    def counted(text: str, pair: str | None, max_tokens: int | None) -> Any:
        stored.append(max_tokens)
        return fitted(text, pair, max_tokens)

    monkeypatch.setattr(tokenizer, "encode_fitted", counted)
    assert api.refused("/score", text_1=QUERY, text_2="on the " * 10**6)[0] == "text_2"
    assert None not in stored


def test_rerank_orders_documents_by_score(api: Api) -> None:
    scores = expected(api, [QUERY] * 3, TEXTS)
    order = sorted(range(3), key=lambda i: -scores[i])
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        reply = api.good(path, query=QUERY, documents=TEXTS)
        assert [each["index"] for each in reply["results"]] == order
        assert [each["relevance_score"] for each in reply["results"]] == pytest.approx(
            [scores[i] for i in order], abs=1e-5
        )
        assert [each["document"]["text"] for each in reply["results"]] == [TEXTS[i] for i in order]
        assert reply["usage"]["total_tokens"] > 0
    documents = [{"text": text} for text in TEXTS]
    best = api.good("/rerank", query=QUERY, documents=documents, top_n=1, return_documents=False)[
        "results"
    ]
    assert [(each["index"], "document" in each) for each in best] == [(order[0], False)]
    assert len(api.good("/rerank", query=QUERY, documents=TEXTS, top_n=9)["results"]) == 3


def test_rerank_is_stable(api: Api) -> None:
    reply = api.good("/rerank", query=QUERY, documents=[TEXTS[0]] * 4)
    assert [each["index"] for each in reply["results"]] == [0, 1, 2, 3]


def test_rerank_supports_text_embeddings_inference_form(api: Api) -> None:
    raw = expected(api, [QUERY] * 3, TEXTS, use_activation=False)
    order = sorted(range(3), key=lambda i: -raw[i])
    reply = api.good("/rerank", query=QUERY, texts=TEXTS, raw_scores=True, return_text=True)
    assert [each["index"] for each in reply] == order
    assert [each["score"] for each in reply] == pytest.approx([raw[i] for i in order], abs=1e-5)
    assert [each["text"] for each in reply] == [TEXTS[i] for i in order]
    long = ["on " * 200, "in"]
    assert api.refused("/rerank", query=QUERY, texts=long)[0] == "texts"
    assert len(api.good("/rerank", query=QUERY, texts=long, truncate=True)) == 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"documents": TEXTS}, "query"),
        ({"query": QUERY}, "documents"),
        ({"query": QUERY, "documents": []}, "documents"),
        ({"query": QUERY, "documents": ["a"] * 1025}, "documents"),
        ({"query": QUERY, "documents": TEXTS, "texts": TEXTS}, "documents"),
        ({"query": QUERY, "documents": TEXTS, "top_n": -1}, "top_n"),
        ({"query": {}, "documents": TEXTS}, "query"),
        ({"query": QUERY, "documents": [{"title": "a"}]}, "documents[0]"),
        ({"query": QUERY, "documents": TEXTS, "rank_fields": ["title"]}, "rank_fields"),
        ({"query": QUERY, "documents": ["on " * 200]}, "documents"),
    ],
)
def test_invalid_rerank_requests_name_the_field(api: Api, body: dict[str, Any], field: str) -> None:
    assert api.refused("/rerank", **body)[0] == field
