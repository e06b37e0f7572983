"""Prompts given as embeddings: those of tokens give the tokens' answers."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.tokens.render import RenderRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import LLM, AsyncLLM, SamplingParams
from core.api import InvalidRequest
from core.testing.checkpoints import make_checkpoint
from tests.in_process import send_to

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 128,
    "block_size": 4,
    "max_num_batched_tokens": 16,
    "kv_cache_memory_bytes": 4 << 20,
    "enable_prompt_embeds": True,
}
PROMPTS = [[(7 * i + j * j) % 90 for j in range(size)] for i, size in enumerate((5, 40, 1))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("llama"), seed=3)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), **SETTINGS) as made:
        yield made


def embeddings_of(folder: Path, ids: list[int]) -> torch.Tensor:
    table = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    return table[ids]


def answers(llm: LLM, prompts: Any) -> list[list[int]]:
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_embeddings_of_tokens_give_their_answers_in_one_batch_with_tokens(
    llm: LLM, folder: Path
) -> None:
    expected = answers(llm, PROMPTS)
    assert len({tuple(answer) for answer in expected}) == len(PROMPTS)
    embedded = [{"prompt_embeds": embeddings_of(folder, ids)} for ids in PROMPTS]
    assert answers(llm, embedded) == expected
    mixed = [embedded[0], PROMPTS[1], embedded[1], PROMPTS[2]]
    assert answers(llm, mixed) == [expected[0], expected[1], expected[1], expected[2]]


def test_equal_embeddings_are_a_prefix_hit_and_others_are_none(llm: LLM, folder: Path) -> None:
    embeddings = embeddings_of(folder, PROMPTS[1]) * 0.9
    prompt: Any = {"prompt_embeds": embeddings}
    (first,) = llm.generate(prompt, GREEDY, use_tqdm=False)
    (again,) = llm.generate(prompt, GREEDY, use_tqdm=False)
    assert not first.num_cached_tokens
    assert again.num_cached_tokens
    assert first.outputs[0].token_ids == again.outputs[0].token_ids
    changed: Any = {"prompt_embeds": embeddings * 1.01}
    (other,) = llm.generate(changed, GREEDY, use_tqdm=False)
    assert not other.num_cached_tokens
    assert not llm.generate([[0] * 40], GREEDY, use_tqdm=False)[0].num_cached_tokens


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        (torch.zeros(3, 63), {}, r"^prompt_embeds: got 1 tensors.*\[tokens, 64\]"),
        (torch.zeros(2, 3, 64), {}, "^prompt_embeds: got 1 tensors"),
        (torch.zeros(3, 64, dtype=torch.int64), {}, "^prompt_embeds: got 1 tensors.*int64"),
        (torch.full((3, 64), float("inf")), {}, "^prompt_embeds: got numbers that are not finite"),
        (torch.full((3, 64), float("nan")).bfloat16(), {}, "^prompt_embeds: .*not finite"),
        (torch.zeros(0, 64), {}, "^prompt_embeds: got float32 of shape"),
        (torch.zeros(128, 64), {}, "has 128 tokens, but the context holds 128"),
        (torch.zeros(3, 64), {"prompt_logprobs": 1}, "^prompt_logprobs: "),
        (torch.zeros(3, 64), {"truncate_prompt_tokens": 2}, "^truncate_prompt_tokens: "),
        ([1, 2], {}, "^prompt_embeds: got list"),
    ],
)
def test_other_embeddings_are_refused_by_field(
    llm: LLM, prompt: Any, params: dict[str, Any], words: str
) -> None:
    given: Any = {"prompt_embeds": prompt}
    with pytest.raises(InvalidRequest, match=words):
        llm.generate(given, GREEDY.clone(**params), use_tqdm=False)


def test_embeddings_exclude_a_prompt(llm: LLM) -> None:
    prompt: Any = {"prompt_embeds": torch.zeros(3, 64), "prompt_token_ids": [1]}
    with pytest.raises(InvalidRequest, match=r"^prompt_embeds: got embeddings and a prompt"):
        llm.generate(prompt, GREEDY, use_tqdm=False)


def test_engines_without_the_flag_name_it(folder: Path) -> None:
    prompt: Any = {"prompt_embeds": torch.zeros(3, 64)}
    with (
        LLM(str(folder), **{**SETTINGS, "enable_prompt_embeds": False}) as llm,
        pytest.raises(InvalidRequest, match=r"^prompt_embeds: .*--enable-prompt-embeds"),
    ):
        llm.generate(prompt, GREEDY, use_tqdm=False)


def test_completions_take_every_form_and_answer_embeddings_first(folder: Path) -> None:
    embeddings = embeddings_of(folder, PROMPTS[0])
    as_file = base64.b64encode(save({"x": embeddings})).decode()
    data = base64.b64encode(embeddings.numpy().tobytes()).decode()
    raw = {"data": data, "dtype": "float32", "shape": list(embeddings.shape)}
    saved = io.BytesIO()
    torch.save(embeddings, saved)
    pickled = base64.b64encode(saved.getvalue()).decode()
    engine = AsyncLLM(str(folder), disable_frontend_multiprocessing=True, **SETTINGS)
    try:
        app = HttpServer(engine, engine.config, [OpenAIRoutes(engine, engine.config)]).app

        def post(**fields: Any) -> Any:
            body = {"model": "", "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}
            return send_to(app, "POST", "/v1/completions", json=body)

        def texts(**fields: Any) -> list[str]:
            answer = post(**fields).json()
            return [choice["text"] for choice in answer["choices"]]

        (expected,) = texts(prompt=PROMPTS[0])
        (other,) = texts(prompt=PROMPTS[2])
        assert expected != other
        assert texts(prompt_embeds=as_file) == [expected]
        assert texts(prompt_embeds=[raw]) == [expected]
        assert texts(prompt_embeds=[raw, as_file], prompt=PROMPTS[2]) == [expected, expected, other]
        assert post(prompt_embeds=as_file).json()["usage"]["prompt_tokens"] == len(PROMPTS[0])
        for fields, param in (
            ({"prompt_embeds": pickled}, "prompt_embeds"),
            ({"prompt_embeds": {**raw, "shape": [1]}}, "prompt_embeds.data"),
            ({"prompt_embeds": as_file, "echo": True}, "echo"),
            ({"prompt_embeds": as_file, "stream": True, "prompt": []}, "prompt"),
            ({}, "prompt"),
        ):
            refused = post(**fields)
            assert refused.status_code == 400, fields
            assert refused.json()["error"]["param"] == param
    finally:
        engine.shutdown()


def test_embeddings_are_refused_by_render_routes_and_token_ids_are_not(folder: Path) -> None:
    embeddings = embeddings_of(folder, PROMPTS[0])
    given = base64.b64encode(save({"x": embeddings})).decode()
    settings = {**SETTINGS, "enable_scale_out": True}
    engine = AsyncLLM(str(folder), disable_frontend_multiprocessing=True, **settings)
    try:
        groups = [each(engine, engine.config) for each in (OpenAIRoutes, RenderRoutes)]
        app = HttpServer(engine, engine.config, groups).app
        path = "/v1/completions/render"
        refused = send_to(app, "POST", path, json={"prompt_embeds": given, "max_tokens": 4})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "prompt_embeds"
        assert "embeddings" in refused.json()["error"]["message"]
        rendered = send_to(app, "POST", path, json={"prompt": PROMPTS[0], "max_tokens": 4})
        assert [each["token_ids"] for each in rendered.json()] == [PROMPTS[0]]
    finally:
        engine.shutdown()


def test_embeddings_alone_without_the_switch_are_refused_by_their_own_field(folder: Path) -> None:
    given = base64.b64encode(save({"x": embeddings_of(folder, PROMPTS[0])})).decode()
    settings = {**SETTINGS, "enable_prompt_embeds": False}
    engine = AsyncLLM(str(folder), disable_frontend_multiprocessing=True, **settings)
    try:
        app = HttpServer(engine, engine.config, [OpenAIRoutes(engine, engine.config)]).app
        body = {"prompt_embeds": given, "max_tokens": 4}
        refused = send_to(app, "POST", "/v1/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_embeds")
        assert "--enable-prompt-embeds" in refused.json()["error"]["message"]
    finally:
        engine.shutdown()
