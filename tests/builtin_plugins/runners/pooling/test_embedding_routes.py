"""`/v1/embeddings`, `/v2/embed`, `/pooling` and `/classify` equal `LLM`, in every input form."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from builtin_plugins.routes.embeddings.service import MAX_CONCURRENT_PROMPTS
from core import PoolingParams
from core.api.outputs import PoolingInfo
from core.errors import InvalidRequest
from core.testing.echo_engine import EchoEngine
from tests.builtin_plugins.runners.pooling.served_pooling import Api, as_sentence_model, opened

Checkpoint = Callable[..., Path]
TEXTS = ["the other in the then", "in on the", "he then on"]
PREFIX = "the on: "


@pytest.fixture(scope="module")
def api(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A Matryoshka embedding model with a query prompt."""
    folder = tmp_path_factory.mktemp("sentences") / "model"
    shutil.copytree(checkpoint("BertModel"), folder)
    as_sentence_model(folder, query=PREFIX, summary="on ")
    with opened(folder, hf_overrides={"is_matryoshka": True}) as engine:
        yield Api(engine)


@pytest.fixture(scope="module")
def labels(checkpoint: Checkpoint) -> Iterator[Api]:
    """A classifier."""
    named = {"id2label": {"0": "bad", "1": "good"}}
    with opened(
        checkpoint("BertForSequenceClassification"), hf_overrides=named | {"num_labels": 3}
    ) as engine:
        yield Api(engine)


def vectors(
    api: Api, *prompts: Any, name: str | None = None, **params: Any
) -> np.ndarray[Any, Any]:
    """Return the engine's own embeddings."""

    async def collect() -> list[Any]:
        target = PoolingParams(**params)
        runs = [
            api.engine.encode(p, target, f"own-{i}", prompt_name=name)
            for i, p in enumerate(prompts)
        ]
        return [(await anext(run)).outputs.data.numpy() for run in runs]

    return np.stack(asyncio.run(collect()))


def embeddings(reply: Any) -> np.ndarray[Any, Any]:
    assert [each["index"] for each in reply["data"]] == list(range(len(reply["data"])))
    return np.array([each["embedding"] for each in reply["data"]], np.float32)


def test_embedding_is_equal_for_every_input_form(api: Api) -> None:
    ids = [api.engine.tokenizer.encode(text) for text in TEXTS]
    expected = vectors(api, *TEXTS)
    for given, target in (
        (TEXTS, expected),
        (TEXTS[0], expected[:1]),
        (ids, expected),
        (ids[1], expected[1:2]),
    ):
        reply = api.good("/v1/embeddings", input=given)
        np.testing.assert_allclose(embeddings(reply), target, atol=1e-5)
        assert (reply["object"], reply["data"][0]["object"]) == ("list", "embedding")
        assert reply["id"].startswith("embd-")
    assert api.good("/v1/embeddings", input=TEXTS)["usage"] == {
        "prompt_tokens": sum(map(len, ids)),
        "total_tokens": sum(map(len, ids)),
    }


def test_chat_embedding_uses_chat_template(api: Api) -> None:
    messages = [{"role": "user", "content": TEXTS[0]}]
    _, ids = asyncio.run(api.engine.render_chat(messages, add_generation_prompt=False))
    np.testing.assert_allclose(
        embeddings(api.good("/v1/embeddings", messages=messages)),
        vectors(api, {"prompt_token_ids": ids}),
        atol=1e-5,
    )


def test_add_special_tokens_false_is_supported(api: Api) -> None:
    bare = api.engine.tokenizer.encode(TEXTS[0], False)
    reply = api.good("/v1/embeddings", input=TEXTS[0], add_special_tokens=False)
    assert (
        reply["usage"]["prompt_tokens"]
        == len(bare)
        == len(api.engine.tokenizer.encode(TEXTS[0])) - 2
    )
    np.testing.assert_allclose(
        embeddings(reply), vectors(api, {"prompt_token_ids": bare}), atol=1e-5
    )


@pytest.mark.parametrize(
    ("dtype", "order", "read"),
    [
        ("float32", "native", lambda data: np.frombuffer(data, np.float32)),
        ("float32", "big", lambda data: np.frombuffer(data, ">f4")),
        ("float16", "little", lambda data: np.frombuffer(data, "<f2")),
        (
            "bfloat16",
            "little",
            lambda data: (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32),
        ),
    ],
)
def test_base64_and_bytes_encodings_are_equal(
    api: Api, dtype: str, order: str, read: Callable[..., Any]
) -> None:
    expected = vectors(api, *TEXTS)
    form = {"input": TEXTS, "embed_dtype": dtype, "endianness": order}
    exact = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 4e-3}[dtype]
    reply = api.good("/v1/embeddings", encoding_format="base64", **form)
    found = [read(base64.b64decode(each["embedding"])) for each in reply["data"]]
    np.testing.assert_allclose(found, expected, atol=exact)
    plain = api.post("/v1/embeddings", encoding_format="bytes_only", **form)
    assert plain.headers["content-type"] == "application/octet-stream"
    np.testing.assert_array_equal(read(plain.content), np.concatenate(found))
    reported = api.post("/v1/embeddings", encoding_format="bytes", **form)
    metadata = json.loads(reported.headers["metadata"])
    assert metadata["usage"] == reply["usage"]
    for entry, target in zip(metadata["data"], found, strict=True):
        np.testing.assert_array_equal(read(reported.content[entry["start"] : entry["end"]]), target)
        assert (entry["shape"], entry["embed_dtype"], entry["endianness"]) == ([64], dtype, order)


def test_dimensions_truncate_matryoshka_embeddings(api: Api) -> None:
    found = embeddings(api.good("/v1/embeddings", input=TEXTS, dimensions=16))
    np.testing.assert_allclose(found, vectors(api, *TEXTS, dimensions=16), atol=1e-5)
    assert found.shape == (3, 16)
    assert api.refused("/v1/embeddings", input="a", dimensions=65)[0] == "dimensions"


def test_normalize_false_returns_raw_embeddings(api: Api) -> None:
    plain = embeddings(api.good("/v1/embeddings", input=TEXTS, normalize=False))
    np.testing.assert_allclose(plain, vectors(api, *TEXTS, use_activation=False), atol=1e-5)
    assert not np.allclose(np.linalg.norm(plain, axis=1), 1, atol=1e-3)


def test_long_texts_are_truncated_or_rejected(api: Api) -> None:
    long = " ".join(TEXTS * 20)
    field, text_out = api.refused("/v1/embeddings", input=["on", long])
    assert field == "input"
    assert "the context holds 64" in text_out
    assert (
        api.good("/v1/embeddings", input=long, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"]
        == 64
    )
    assert (
        api.good("/v1/embeddings", input=long, truncate_prompt_tokens=9)["usage"]["prompt_tokens"]
        == 9
    )


def test_far_too_long_text_is_tokenized_only_partly(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = api.engine.tokenizer
    read = []
    encode = tokenizer.encode

    def counted(text: str, add_special_tokens: bool = True) -> list[int]:
        read.append(len(text))
        return list(encode(text, add_special_tokens))

    monkeypatch.setattr(tokenizer, "encode", counted)
    field, text_out = api.refused("/v1/embeddings", input="on the " * 10**6)
    assert field == "input"
    assert "the context holds 64" in text_out
    assert sum(read) < 100_000


def test_long_texts_are_chunked_with_enable_chunked_processing(checkpoint: Checkpoint) -> None:
    target = {"enable_chunked_processing": True, "max_embed_len": 100}
    with opened(checkpoint("BertModel"), max_model_len=32, pooler_config=target) as engine:
        api = Api(engine)
        assert (
            api.good("/v1/embeddings", input=[list(range(5, 95))])["usage"]["prompt_tokens"] == 90
        )
        assert api.refused("/v1/embeddings", input=[list(range(5, 106))])[0] == "input"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input[0]"),
        ({"input": ["on", ""]}, "input[1]"),
        ({"input": ["a"] * 1025}, "input"),
        ({"input": ["a", 5]}, "input"),
        ({"input": [[True]]}, "input"),
        ({"input": [10**9]}, "input"),
        ({"input": 5}, "input"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "on " * 200}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}], "chat_template": "a"}, "chat_template"),
        ({"input": "a", "encoding_format": "yaml"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 65}, "truncate_prompt_tokens"),
        ({"input": "a", "truncation_side": "left"}, "truncation_side"),
        ({"input": "a", "encodingformat": "float"}, "encodingformat"),
        ({"input": "a", "images": ["data:"]}, "images"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:"}}],
                    }
                ]
            },
            "messages[0].content[0]",
        ),
        ({"input": "a", "cache_salt": "s" * 257}, "cache_salt"),
    ],
)
def test_invalid_embedding_input_names_the_field(
    api: Api, body: dict[str, Any], field: str
) -> None:
    assert api.refused("/v1/embeddings", **body)[0] == field


@pytest.mark.parametrize(
    ("path", "body", "good"),
    [
        (
            "/v1/embeddings",
            {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 8, "user": "me"},
            True,
        ),
        ("/v1/embeddings", {"input": "a", "truncation_side": "right", "normalize": None}, True),
        ("/v1/embeddings", {"input": "a", "encoding_format": "yaml"}, False),
        ("/v1/embeddings", {"input": "a", "truncation_side": "left"}, False),
        ("/v1/embeddings", {"input": "a", "dimensions": "all"}, False),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["ubinary"], "truncate": "NONE"}, True),
        ("/v2/embed", {"texts": "a"}, False),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int4"]}, False),
        ("/score", {"queries": "a", "documents": ["b", {"text": "c"}]}, True),
        ("/score", {"queries": 5, "documents": "a"}, False),
        ("/v1/rerank", {"query": "a", "documents": [{"text": "b"}], "top_n": 1}, True),
        ("/v1/rerank", {"documents": ["b"]}, False),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, False),
        ("/pooling", {"input": [5, 6], "task": "token_embed"}, True),
        ("/pooling", {"input": {}}, False),
    ],
)
def test_openapi_schema_matches_server(
    api: Api, path: str, body: dict[str, Any], good: bool
) -> None:
    described = asyncio.run(api.send("/openapi.json", method="GET")).json()
    reference = described["paths"][path]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]["$ref"]
    schema = described["components"]["schemas"][reference.rpartition("/")[2]]
    assert Draft202012Validator(schema).is_valid(body) == good
    assert (api.post(path, **body).status_code == 200) == good


def test_neutral_fields_pass_and_unknown_fields_are_rejected(api: Api) -> None:
    reply = api.post(
        "/v1/embeddings",
        input="a",
        user="me",
        truncation_side="right",
        padding=None,
        quantum_mode=1,
    )
    assert reply.status_code == 200
    assert reply.headers["x-ignored-fields"] == "quantum_mode"
    assert (
        Api(api.engine, strict_fields=True).refused("/v1/embeddings", input="a", quantum_mode=1)[0]
        == "quantum_mode"
    )


def test_unknown_model_is_not_found(api: Api) -> None:
    assert api.post("/v1/embeddings", input="a", model="other").status_code == 404


def test_cohere_embedding_types_are_returned(api: Api) -> None:
    kinds = ["float", "base64", "binary", "ubinary"]
    reply = api.good("/v2/embed", texts=TEXTS, input_type="search_document", embedding_types=kinds)
    expected = vectors(api, *TEXTS)
    found = reply["embeddings"]
    np.testing.assert_allclose(found["float"], expected, atol=1e-5)
    np.testing.assert_allclose(
        [np.frombuffer(base64.b64decode(text), "<f4") for text in found["base64"]],
        expected,
        atol=1e-5,
    )
    bits = np.packbits(np.array(found["float"]) >= 0, axis=1)
    assert found["ubinary"] == bits.tolist()
    assert found["binary"] == (bits.astype(int) - 128).tolist()
    assert reply["texts"] == TEXTS
    assert reply["meta"]["tokens"]["input_tokens"] == sum(
        len(api.engine.tokenizer.encode(text)) for text in TEXTS
    )


def test_cohere_input_type_selects_prompt(api: Api) -> None:
    def embedded(**fields: Any) -> Any:
        return api.good("/v2/embed", texts=TEXTS[:1], **fields)["embeddings"]["float"]

    as_query = vectors(api, TEXTS[0], name="query")
    np.testing.assert_allclose(embedded(input_type="search_query"), as_query, atol=1e-5)
    np.testing.assert_allclose(embedded(input_type="query"), as_query, atol=1e-5)
    np.testing.assert_allclose(embedded(input_type="clustering"), vectors(api, TEXTS[0]), atol=1e-5)
    field, text_out = api.refused("/v2/embed", texts=["a"], input_type="sumary")
    assert field == "input_type"
    assert "did you mean 'summary'" in text_out


def test_cohere_truncates_by_default(api: Api) -> None:
    long = " ".join(TEXTS * 20)

    def count(**fields: Any) -> Any:
        return api.good("/v2/embed", texts=[long], **fields)["meta"]["tokens"]["input_tokens"]

    assert count() == 64
    assert count(max_tokens=7) == 7
    assert api.refused("/v2/embed", texts=[long], truncate="NONE")[0] == "texts"
    assert api.refused("/v2/embed", texts=TEXTS, truncate="NONE", max_tokens=3)[0] == "max_tokens"
    assert api.refused("/v2/embed", texts=TEXTS, truncate="START")[0] == "truncate"


def test_cohere_accepts_contents_and_dimensions(api: Api) -> None:
    content = [{"type": "text", "text": TEXTS[0]}]
    reply = api.good("/v2/embed", inputs=[{"content": content}], output_dimension=8)
    np.testing.assert_allclose(
        reply["embeddings"]["float"], vectors(api, TEXTS[0], dimensions=8), atol=1e-5
    )
    image = [{"type": "image_url", "image_url": {"url": "data:"}}]
    assert api.refused("/v2/embed", inputs=[{"content": image}])[0] == "inputs[0].content[0]"
    assert api.refused("/v2/embed", texts=["a"], output_dimension=1000)[0] == "output_dimension"
    assert (
        api.refused("/v2/embed", texts=["a"], output_dimension=9, embedding_types=["binary"])[0]
        == "embedding_types"
    )
    assert api.refused("/v2/embed")[0] == "texts"


def test_pooling_route_uses_default_or_requested_task(api: Api, labels: Api) -> None:
    reply = api.good("/pooling", input=TEXTS)
    np.testing.assert_allclose(
        [each["data"] for each in reply["data"]], vectors(api, *TEXTS), atol=1e-5
    )
    assert reply["data"][0]["object"] == "pooling"
    tokens = api.good("/pooling", input=TEXTS[0], task="token_embed")
    assert np.array(tokens["data"][0]["data"]).shape == (tokens["usage"]["prompt_tokens"], 64)
    found = api.post("/pooling", input=TEXTS[0], task="token_embed", encoding_format="bytes")
    assert json.loads(found.headers["metadata"])["data"][0]["shape"] == [
        tokens["usage"]["prompt_tokens"],
        64,
    ]
    np.testing.assert_allclose(
        labels.good("/pooling", input=TEXTS[0])["data"][0]["data"],
        vectors(labels, TEXTS[0])[0],
        atol=1e-5,
    )
    assert api.refused("/pooling", input="a", task="classify") == (
        "task",
        "task: got 'classify'; this model supports embed, token_embed.",
    )
    assert api.refused("/pooling", data={"x": 1})[0] == "data"


def test_classify_returns_labels_and_probabilities(labels: Api) -> None:
    reply = labels.good("/classify", input=TEXTS)
    expected = vectors(labels, *TEXTS)
    np.testing.assert_allclose([each["probs"] for each in reply["data"]], expected, atol=1e-5)
    best = [("bad", "good", "LABEL_2")[row.argmax()] for row in expected]
    assert [(each["label"], each["num_classes"]) for each in reply["data"]] == [
        (label, 3) for label in best
    ]
    raw = labels.good("/classify", input=TEXTS[0], use_activation=False)["data"][0]["probs"]
    np.testing.assert_allclose(raw, vectors(labels, TEXTS[0], use_activation=False)[0], atol=1e-5)


def test_unsupported_task_error_lists_tasks(labels: Api, api: Api) -> None:
    assert labels.refused("/v1/embeddings", input="a") == (
        "model",
        "model: gives no embeddings; it does classify, token_classify.",
    )
    assert (
        api.refused("/classify", input="a")[1]
        == "model: gives no labels; it does embed, token_embed."
    )
    generating = Api(EchoEngine())
    for path, body in (
        ("/v1/embeddings", {"input": "a"}),
        ("/v2/embed", {"texts": ["a"]}),
        ("/pooling", {"input": "a"}),
        ("/classify", {"input": "a"}),
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
    ):
        field, text_out = generating.refused(path, **body)
        assert field == "model", path
        assert "it generates text" in text_out


class Slow(EchoEngine):
    """Blocks until its gate opens; counts the waiting calls."""

    def __init__(self) -> None:
        super().__init__()
        self.pooling: Any = PoolingInfo(("embed",), 4)
        self.num_waiting = self.max_waiting = 0

    async def encode(
        self, prompt: Any, params: PoolingParams, request_id: str, **options: Any
    ) -> AsyncIterator[Any]:
        if prompt == "bad":
            raise InvalidRequest("prompt", "is bad.")
        self.num_waiting += 1
        self.max_waiting = max(self.max_waiting, self.num_waiting)
        try:
            await self.gate.wait()
        finally:
            self.num_waiting -= 1
        yield None


def test_client_disconnect_aborts_all_inputs() -> None:
    async def leave() -> Slow:
        engine = Slow()
        engine.gate.clear()
        requested = asyncio.ensure_future(Api(engine).send("/v1/embeddings", input=["a"] * 500))
        while engine.num_waiting < MAX_CONCURRENT_PROMPTS:
            await asyncio.sleep(0)
        requested.cancel()
        await asyncio.gather(requested, return_exceptions=True)
        return engine

    engine = asyncio.run(leave())
    assert (engine.num_waiting, engine.max_waiting) == (0, MAX_CONCURRENT_PROMPTS)


def test_disconnected_client_leaves_no_requests_in_the_engine(api: Api) -> None:
    async def leave() -> None:
        requested = asyncio.ensure_future(api.send("/v1/embeddings", input=TEXTS * 100))
        while not api.engine.open_ids():
            await asyncio.sleep(0)
        requested.cancel()
        await asyncio.gather(requested, return_exceptions=True)

    asyncio.run(leave())
    assert api.engine.open_ids() == []


def test_invalid_input_aborts_the_other_inputs() -> None:
    async def collect() -> tuple[Slow, Any]:
        engine = Slow()
        engine.gate.clear()
        reply = await Api(engine).send("/v1/embeddings", input=["a", "bad", "b"])
        return engine, reply

    engine, reply = asyncio.run(collect())
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input")
    assert engine.num_waiting == 0
