"""Pair scores, labels of converted models, and rewards of tokens and steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, Qwen2Model, Qwen3ForCausalLM

from core import LLM, AsyncLLM, PoolingParams, PoolingRequestOutput
from core.errors import ConfigError, InvalidRequest, ModelError
from core.testing.checkpoints import VOCAB, make_checkpoint
from core.testing.published.catalog import reference

Open = Callable[..., LLM]
QUERY = "the other in the then"
TEXTS = ["in on the", "he then on", "an other at the, then"]


@torch.inference_mode()
def pair_scores(folder: Path, llm: LLM) -> torch.Tensor:
    """Return transformers' scores of the pairs, with the types of their tokens."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer: Any = llm.get_tokenizer()
    scores = []
    for text in TEXTS:
        first = tokenizer.encode(QUERY, False)
        second = tokenizer.encode(text, False)
        ids = [VOCAB - 2, *first, VOCAB - 1, *second, VOCAB - 1]
        types = torch.tensor([[0] * (len(first) + 2) + [1] * (len(second) + 1)])
        reported = (
            {"token_type_ids": types} if getattr(model.config, "type_vocab_size", 1) > 1 else {}
        )
        scores.append(model(torch.tensor([ids]), **reported).logits[0, 0])
    return torch.stack(scores)


@pytest.mark.parametrize(
    "name",
    [
        "BertForSequenceClassification",
        "DebertaV2ForSequenceClassification",
        "XLMRobertaForSequenceClassification",
        "Qwen3ForSequenceClassification",
    ],
)
def test_cross_encoder_uses_token_types(
    name: str, checkpoint: Callable[..., Path], engine: Open
) -> None:
    folder = checkpoint(name, num_labels=1)
    with engine(folder) as llm:
        expected = pair_scores(folder, llm)
        found = torch.tensor(
            [output.outputs.score for output in llm.score(QUERY, TEXTS, use_tqdm=False)]
        )
        raw = PoolingParams(use_activation=False)
        plain = [
            o.outputs.score for o in llm.score(QUERY, TEXTS, pooling_params=raw, use_tqdm=False)
        ]
        short = llm.score(QUERY, TEXTS[2], truncate_prompt_tokens=12, use_tqdm=False)[
            0
        ].prompt_token_ids
    torch.testing.assert_close(found, expected.sigmoid(), atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.tensor(plain), expected, atol=1e-4, rtol=1e-4)
    assert len(short) == 12
    assert short.count(VOCAB - 1) == 2


def test_async_engine_scores_pairs_alike(checkpoint: Callable[..., Path], engine: Open) -> None:
    folder = checkpoint("BertForSequenceClassification", num_labels=1)
    with engine(folder) as llm:
        expected = llm.score(QUERY, TEXTS[0], use_tqdm=False)[0].outputs.score

    async def collect() -> PoolingRequestOutput[Any]:
        settings: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "log_level": "error"}
        served = AsyncLLM(
            str(folder), max_model_len=128, disable_frontend_multiprocessing=True, **settings
        )
        try:
            return await anext(
                served.encode((QUERY, TEXTS[0]), PoolingParams(task="score"), "pair")
            )
        finally:
            served.shutdown()

    assert asyncio.run(collect()).outputs.data.item() == pytest.approx(expected, abs=1e-5)


def test_cross_encoder_files_set_output_activation(
    checkpoint: Callable[..., Path], engine: Open
) -> None:
    folder = checkpoint("BertForSequenceClassification", num_labels=1)
    stated = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
    with engine(folder, hf_overrides=stated) as llm:
        expected = pair_scores(folder, llm)
        found = torch.tensor(
            [output.outputs.score for output in llm.score(QUERY, TEXTS, use_tqdm=False)]
        )
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("problem", "last"),
    [
        ("regression", lambda scores: scores),
        ("single_label_classification", lambda scores: scores.softmax(-1)),
        ("multi_label_classification", torch.sigmoid),
    ],
)
def test_problem_type_sets_output_activation(
    problem: str,
    last: Callable[[torch.Tensor], torch.Tensor],
    checkpoint: Callable[..., Path],
    engine: Open,
    prompts: list[list[int]],
) -> None:
    folder = checkpoint("BertForSequenceClassification")
    with engine(folder, hf_overrides={"problem_type": problem}) as llm:
        found = torch.tensor(llm.classify(prompts[0], use_tqdm=False)[0].outputs.probs)
        plain = llm.classify(prompts[0], PoolingParams(use_activation=False), use_tqdm=False)[
            0
        ].outputs.probs
    with torch.inference_mode():
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        scores = model(torch.tensor([prompts[0]])).logits[0]
    torch.testing.assert_close(found, last(scores), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.tensor(plain), scores, atol=1e-4, rtol=1e-4)


PAIR_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'query' %}the {{ message.content }} in "
    "{% elif message.role == 'document' %}{{ message.content }} then{% endif %}{% endfor %}"
)


@torch.inference_mode()
def test_classifier_from_token_scores_by_the_logits_of_two_answers(
    checkpoint: Callable[..., Path], engine: Open
) -> None:
    folder = checkpoint("Qwen3ForCausalLM")
    stated = {"classifier_from_token": ["in", "on"]}
    settings = {"convert": "classify", "hf_overrides": stated, "chat_template": PAIR_TEMPLATE}
    with engine(folder, runner="pooling", **settings) as llm:
        outputs = llm.score("other", TEXTS, use_tqdm=False)
        encode = llm.get_tokenizer().encode
        no, yes = (encode(text, False)[0] for text in stated["classifier_from_token"])
        with pytest.raises(InvalidRequest, match="expected no truncation, since the chat template"):
            llm.score("other", TEXTS, truncate_prompt_tokens=3, use_tqdm=False)
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for text, output in zip(TEXTS, outputs, strict=True):
        ids = encode(f"the other in {text} then", False)
        assert list(output.prompt_token_ids) == ids
        logits = model(torch.tensor([ids])).logits[0, -1]
        expected = (logits[yes] - logits[no]).sigmoid().item()
        assert output.outputs.score == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("Qwen3ForCausalLM", ["in", "in on the"]),
        ("Qwen3ForCausalLM", ["in"]),
        ("Qwen3ForCausalLM", "in"),
        ("BertForSequenceClassification", ["in", "on"]),
    ],
)
def test_wrong_answers_of_classifier_from_token_are_named(
    name: str, answers: object, checkpoint: Callable[..., Path], engine: Open
) -> None:
    settings = {"convert": "classify", "hf_overrides": {"classifier_from_token": answers}}
    with pytest.raises(ModelError, match=r"classifier_from_token: got .*; expected"):
        engine(checkpoint(name), **settings)


def test_embedding_score_is_cosine(checkpoint: Callable[..., Path], engine: Open) -> None:
    with engine(checkpoint("BertModel")) as llm:
        first, *others = (
            torch.tensor(o.outputs.embedding) for o in llm.embed([QUERY, *TEXTS], use_tqdm=False)
        )
        found = [output.outputs.score for output in llm.score(QUERY, TEXTS, use_tqdm=False)]
    expected = [
        float(torch.nn.functional.cosine_similarity(first, other, dim=0)) for other in others
    ]
    assert found == pytest.approx(expected, abs=1e-5)


def test_convert_flag_converts_generating_model(
    tmp_path: Path, engine: Open, prompts: list[list[int]]
) -> None:
    folder = make_checkpoint("Qwen3ForCausalLM", tmp_path, seed=1)
    with pytest.raises(
        ConfigError,
        match="--convert classify makes a pooling model, which --runner generate excludes",
    ):
        engine(folder, runner="generate", convert="classify")
    tensors = load_file(folder / "model.safetensors")
    score = torch.randn(2, 64, generator=torch.Generator().manual_seed(0)) / 8
    save_file({**tensors, "score.weight": score}, folder / "model.safetensors")
    with engine(folder, convert="classify") as llm:
        found = [torch.tensor(o.outputs.probs) for o in llm.classify(prompts, use_tqdm=False)]
    model = Qwen3ForCausalLM.from_pretrained(folder).eval().model
    with torch.inference_mode():
        for ids, probs in zip(prompts, found, strict=True):
            last = model(torch.tensor([ids])).last_hidden_state[0, -1]
            torch.testing.assert_close(probs, (score @ last).softmax(-1), atol=1e-4, rtol=0)


def test_converted_reward_model_scores_step_tokens(
    checkpoint: Callable[..., Path], engine: Open, prompts: list[list[int]]
) -> None:
    ids = [*prompts[0][:20], 9, *prompts[0][20:40], 9]
    steps = {
        "pooling_type": "STEP",
        "step_tag_id": 9,
        "returned_token_ids": [17, 23],
        "softmax": True,
    }
    folder = checkpoint("Qwen3ForCausalLM")
    with engine(folder, convert="reward", pooler_config=steps, max_num_batched_tokens=16) as llm:
        found = llm.reward(ids, use_tqdm=False)[0].outputs.data
    with torch.inference_mode():
        logits = Qwen3ForCausalLM.from_pretrained(folder).eval()(torch.tensor([ids])).logits[0]
    at = [index for index, token in enumerate(ids) if token == 9]
    torch.testing.assert_close(found, logits[at][:, [17, 23]].softmax(-1), atol=1e-4, rtol=0)


def reward_checkpoint(folder: Path, architecture: str, labels: int) -> dict[str, torch.Tensor]:
    """Write a Qwen2 reward model with two dense layers; return these."""
    make_checkpoint("Qwen2ForCausalLM", folder, seed=1)
    generator = torch.Generator().manual_seed(0)
    score = {
        "score.0.weight": torch.randn(64, 64, generator=generator) / 8,
        "score.0.bias": torch.randn(64, generator=generator),
        "score.2.weight": torch.randn(labels, 64, generator=generator) / 8,
        "score.2.bias": torch.randn(labels, generator=generator),
    }
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {**{n: t for n, t in tensors.items() if n != "lm_head.weight"}, **score},
        folder / "model.safetensors",
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    return score


@pytest.mark.parametrize(
    ("architecture", "labels"), [("Qwen2ForRewardModel", 1), ("Qwen2ForProcessRewardModel", 2)]
)
def test_reward_models_score_tokens_and_steps(
    architecture: str, labels: int, tmp_path: Path, engine: Open, prompts: list[list[int]]
) -> None:
    score = reward_checkpoint(tmp_path, architecture, labels)
    ids = [*prompts[0][:30], 9, *prompts[0][30:], 9]
    with engine(tmp_path, pooler_config={"step_tag_id": 9}, max_num_batched_tokens=32) as llm:
        found = llm.reward(ids, use_tqdm=False)[0].outputs.data
        with pytest.raises(
            InvalidRequest, match="got 'classify'; this model supports token_classify"
        ):
            llm.classify(ids, use_tqdm=False)
    with torch.inference_mode():
        hidden = (
            Qwen2Model.from_pretrained(tmp_path).eval()(torch.tensor([ids])).last_hidden_state[0]
        )
    inner = torch.relu(hidden @ score["score.0.weight"].T + score["score.0.bias"])
    expected = inner @ score["score.2.weight"].T + score["score.2.bias"]
    if labels == 2:
        expected = expected[[index for index, token in enumerate(ids) if token == 9]].softmax(-1)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_internlm2_reward_model_scores_each_token(
    tmp_path: Path, engine: Open, prompts: list[list[int]]
) -> None:
    make_checkpoint("InternLM2ForCausalLM", tmp_path, seed=1)
    tensors = load_file(tmp_path / "model.safetensors")
    weight = tensors.pop("output.weight")[:1].clone()
    save_file({**tensors, "v_head.weight": weight}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["InternLM2ForRewardModel"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with engine(tmp_path, max_num_batched_tokens=32) as llm:
        found = llm.reward(prompts[0], use_tqdm=False)[0].outputs.data
    with torch.inference_mode():
        model = reference("InternLM2ForCausalLM", 1).model
        hidden = model(torch.tensor([prompts[0]])).last_hidden_state[0]
    torch.testing.assert_close(found, hidden @ weight.T, atol=1e-4, rtol=1e-4)
