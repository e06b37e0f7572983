"""`engine serve` of pooling models with OpenAI's client, and in Cohere's form."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from tests.served import served
from tests.timeouts import TIMEOUT_S

Checkpoint = Callable[..., Path]
TEXTS = ["the other in the then", "in on the", "he then on"]
FLAGS = (
    "--dtype",
    "float32",
    "--max-model-len",
    "64",
    "--num-threads",
    "1",
    "--log-level",
    "error",
)


@pytest.fixture(scope="module")
def client(checkpoint: Checkpoint) -> Iterator[openai.OpenAI]:
    cut = ("--hf-overrides.is_matryoshka", "true", "--served-model-name", "bert")
    with served(str(checkpoint("BertModel")), *FLAGS, *cut) as found:
        yield found


def test_openai_client_gets_equal_embeddings_in_both_encodings(client: openai.OpenAI) -> None:
    usual = client.embeddings.create(model="bert", input=TEXTS)  # in base64, which it decodes
    plain = client.embeddings.create(model="bert", input=TEXTS, encoding_format="float")
    first, second = (np.array([each.embedding for each in reply.data]) for reply in (usual, plain))
    np.testing.assert_allclose(first, second, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-5)
    assert usual.usage.prompt_tokens == plain.usage.total_tokens > 0
    assert [each.index for each in usual.data] == [0, 1, 2]
    short = client.embeddings.create(model="bert", input=TEXTS[0], dimensions=16).data[0].embedding
    np.testing.assert_allclose(short, first[0, :16] / np.linalg.norm(first[0, :16]), atol=1e-5)


def test_openai_client_raises_on_rejections(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="bert", input=TEXTS, dimensions=1000)
    with pytest.raises(openai.NotFoundError, match="other"):
        client.embeddings.create(model="other", input=TEXTS)
    with pytest.raises(
        openai.BadRequestError, match="generates no tokens; use embed, classify or score"
    ):
        client.completions.create(model="bert", prompt="a")


def test_cohere_response_has_cohere_form(client: openai.OpenAI) -> None:
    """The fields of Cohere's client 7.3."""
    address = str(client.base_url).removesuffix("/v1/")
    body = {
        "texts": TEXTS,
        "model": "bert",
        "input_type": "search_document",
        "embedding_types": ["float", "base64"],
    }
    reply = httpx.post(f"{address}/v2/embed", json=body, timeout=TIMEOUT_S).json()
    assert {"id", "embeddings", "texts", "meta"} <= reply.keys()
    found = [np.frombuffer(base64.b64decode(text), "<f4") for text in reply["embeddings"]["base64"]]
    np.testing.assert_allclose(found, reply["embeddings"]["float"], atol=1e-6)
    ranking = {"query": TEXTS[0], "documents": TEXTS, "model": "bert", "top_n": 2}
    results = httpx.post(f"{address}/v2/rerank", json=ranking, timeout=TIMEOUT_S).json()["results"]
    assert results[0]["index"] == 0
    assert results[0]["relevance_score"] == pytest.approx(1, abs=1e-5)
    assert len(results) == 2


def test_invocations_route_runs_default_task(client: openai.OpenAI) -> None:
    address = f"{str(client.base_url).removesuffix('/v1/')}/invocations"
    for body, kind in (
        ({"input": "a"}, "embedding"),
        ({"text_1": "a", "text_2": "b"}, "score"),
    ):
        assert httpx.post(address, json=body, timeout=TIMEOUT_S).json()["data"][0]["object"] == kind
    ranked = httpx.post(address, json={"query": "a", "documents": ["b"]}, timeout=TIMEOUT_S).json()
    assert ranked["results"][0]["index"] == 0
    assert (
        "float"
        in httpx.post(address, json={"texts": ["a"]}, timeout=TIMEOUT_S).json()["embeddings"]
    )
