"""Pooling is invariant to scheduling; unsupported requests are rejected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, AsyncLLM, PoolingParams, SamplingParams
from core.errors import ConfigError, InvalidRequest, RequestFailed

Checkpoint = Callable[..., Path]
Open = Callable[..., LLM]

WAYS: dict[str, dict[str, Any]] = {
    "in chunks of 16": {"max_num_batched_tokens": 16},
    "async scheduling": {"async_scheduling": True, "max_num_batched_tokens": 48},
    "few rows": {"max_num_seqs": 2},
    "without a prefix cache": {"enable_prefix_caching": False},
    "hardly any blocks": {"num_gpu_blocks_override": 9, "max_num_batched_tokens": 32},
}


def numbers(llm: LLM, prompts: list[list[int]], task: str | None = None) -> list[torch.Tensor]:
    return [
        output.outputs.data for output in llm.encode(prompts, pooling_task=task, use_tqdm=False)
    ]


@pytest.mark.parametrize("way", WAYS)
def test_pooling_is_invariant_to_scheduling(
    way: str, checkpoint: Checkpoint, engine: Open, prompts: list[list[int]]
) -> None:
    folder = checkpoint("Qwen3ForCausalLM")
    with engine(folder, runner="pooling") as llm:
        expected = [
            numbers(llm, [ids], task)[0] for task in ("embed", "token_embed") for ids in prompts
        ]
    with engine(folder, runner="pooling", **WAYS[way]) as llm:
        for _ in range(2):  # the second time the prefix cache is warm
            found = [x for task in ("embed", "token_embed") for x in numbers(llm, prompts, task)]
            for ours, target in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, target, atol=1e-5, rtol=0)


@pytest.mark.parametrize("pooler", ["mean", "cls", "max", "mean_sqrt_len", "weighted_mean"])
def test_poolers_see_every_prefill_chunk(
    pooler: str, checkpoint: Checkpoint, engine: Open, prompts: list[list[int]]
) -> None:
    folder = checkpoint("Qwen3ForCausalLM")
    config = {"pooling_type": pooler.upper(), "normalize": False}
    with engine(folder, runner="pooling", max_num_batched_tokens=16, pooler_config=config) as llm:
        for ids, found in zip(prompts, numbers(llm, prompts), strict=True):
            whole = numbers(llm, [ids], "token_embed")[0]
            positions = torch.arange(1, len(ids) + 1)[:, None]
            expected = {
                "mean": whole.mean(0),
                "cls": whole[0],
                "max": whole.amax(0),
                "mean_sqrt_len": whole.sum(0) / len(ids) ** 0.5,
                "weighted_mean": (whole * positions).sum(0) / positions.sum(),
            }[pooler]
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_only_last_token_pooling_uses_prefix_cache(
    checkpoint: Checkpoint, engine: Open, prompts: list[list[int]]
) -> None:
    with engine(checkpoint("Qwen3ForCausalLM"), runner="pooling") as llm:
        cached = [
            llm.encode(prompts[0], pooling_task=task, use_tqdm=False)[0].num_cached_tokens
            for task in TASKS
        ]
    assert cached == [0, 64, 0]


TASKS = ("embed", "embed", "token_embed")


def test_prompt_may_fill_the_context(
    checkpoint: Checkpoint, engine: Open, prompts: list[list[int]]
) -> None:
    full = (prompts[0] * 2)[:128]
    for name in ("BertModel", "Qwen3ForCausalLM"):
        with engine(checkpoint(name), runner="pooling") as llm:
            assert len(numbers(llm, [full])[0]) == 64
            with pytest.raises(
                InvalidRequest, match=r"has 129 tokens, but the context holds 128\."
            ):
                llm.embed([*full, 5], use_tqdm=False)


def test_bidirectional_model_disables_chunked_prefill(checkpoint: Checkpoint, engine: Open) -> None:
    folder = checkpoint("BertModel")
    with engine(folder, max_model_len=None) as llm:
        assert llm.config.model.max_model_len == 256
        assert not llm.config.scheduler.enable_chunked_prefill
        assert not llm.config.cache.enable_prefix_caching
    with pytest.raises(
        ConfigError, match="--max-num-batched-tokens 64 is smaller than the context of 128 tokens"
    ):
        engine(folder, max_num_batched_tokens=64)


def test_positions_after_padding_limit_the_context(checkpoint: Checkpoint, engine: Open) -> None:
    with engine(checkpoint("RobertaModel"), max_model_len=None) as llm:
        assert llm.config.model.max_model_len == 254


def test_failing_pooler_fails_only_its_request(
    checkpoint: Checkpoint, engine: Open, prompts: list[list[int]], tmp_path: Path
) -> None:
    plugin = tmp_path / "picky.py"
    plugin.write_text(PICKY)
    settings = {
        "runner": "pooling",
        "pooler_config": {"pooling_type": "picky"},
        "plugins": [str(plugin)],
    }
    with engine(checkpoint("Qwen3ForCausalLM"), **settings) as llm:
        with pytest.raises(
            RequestFailed, match=r"plugin 'picky' failed in request .*; see the engine log"
        ):
            llm.embed(prompts, use_tqdm=False)
        assert len(llm.embed(prompts[0], use_tqdm=False)[0].outputs.embedding) == 64


PICKY = '''
"""Refuses short prompts."""

from core.api import Entry, hookimpl


@hookimpl
def engine_poolers():
    return [Entry("picky", Picky, "the second token")]


class Picky:
    needs_whole_prompt = True
    per_token = False

    def pool(self, hidden, token_ids, params):
        if len(token_ids) == 3:
            raise ValueError("three tokens are too few")
        return hidden[1:2]
'''


def test_pooling_and_generating_engines_reject_each_others_requests(
    checkpoint: Checkpoint, engine: Open, prompts: list[list[int]]
) -> None:
    folder = checkpoint("Qwen3ForCausalLM")
    with (
        engine(folder, runner="pooling") as llm,
        pytest.raises(InvalidRequest, match="generates no tokens"),
    ):
        llm.generate(prompts, SamplingParams(max_tokens=2), use_tqdm=False)
    with engine(folder) as llm:
        assert llm.config.model.runner == "generate"
        with pytest.raises(InvalidRequest, match="start it with --runner pooling"):
            llm.embed(prompts, use_tqdm=False)


@pytest.mark.parametrize(
    ("architecture", "settings", "flag"),
    [
        (
            "Qwen3ForCausalLM",
            {"pooler_config": {"pooling_type": "MEAN"}},
            "--pooler-config: .* generates tokens here",
        ),
        (
            "BertModel",
            {"logits_processors": ["a.b:C"]},
            "--logits-processors .* a pooled model makes none",
        ),
    ],
)
def test_flags_of_the_other_runner_are_rejected(
    architecture: str, settings: dict[str, Any], flag: str, checkpoint: Checkpoint, engine: Open
) -> None:
    with pytest.raises(ConfigError, match=flag):
        engine(checkpoint(architecture), **settings)


def test_pooling_calls_accept_neutral_keywords_and_reject_others(
    checkpoint: Checkpoint, engine: Open, prompts: list[list[int]]
) -> None:
    with engine(checkpoint("BertModel")) as llm:
        neutral: dict[str, Any] = {
            "lora_request": None,
            "tokenization_kwargs": {},
            "use_tqdm": False,
        }
        for call in (llm.encode, llm.embed):
            assert len(call(prompts, **neutral)) == len(prompts)
        assert len(llm.score(["a", "b"], ["c", "d"], **neutral)) == 2
        with pytest.raises(InvalidRequest, match="lora_request: needs LoRA adapters"):
            llm.embed(prompts, lora_request=object())
        with pytest.raises(InvalidRequest, match="truncate_prompt: is no keyword of this call"):
            llm.score("a", "b", truncate_prompt=1)


ADAPTERS = """
from dataclasses import replace
from core.api import hookimpl

class Adapters:
    keywords = ("adapter",)
    seen = []

    def prepare(self, draft):
        self.seen.append((draft.prompt_token_ids, draft.plugin_fields["adapter"]))
        return replace(draft, cache_domains=(("adapter", draft.plugin_fields["adapter"].encode()),))

@hookimpl
def engine_admission_extensions(config, registry):
    return [registry.shared("adapters", Adapters)]
"""


def test_feature_keywords_reach_every_chunk_request(
    checkpoint: Checkpoint, engine: Open, tmp_path: Path
) -> None:
    file = tmp_path / "adapters.py"
    file.write_text(ADAPTERS)
    pieces = {"enable_chunked_processing": True}
    with engine(
        checkpoint("BertModel"), plugins=[f"+{file}"], pooler_config=pieces, max_model_len=8
    ) as llm:
        llm.embed([[7] * 10, [8]], adapter=["x", "y"], use_tqdm=False)
        llm.score("a", ["b", "c"], adapter="z", use_tqdm=False)
        seen = llm._frontend.registry.shared("adapters", lambda: None).seen
    assert sorted(seen[:3]) == [([7] * 2, "x"), ([7] * 8, "x"), ([8], "y")]
    assert [name for _, name in seen[3:]] == ["z"] * 4


def test_unsupported_pooling_requests_are_rejected(
    checkpoint: Checkpoint, engine: Open, prompts: list[list[int]]
) -> None:
    with engine(checkpoint("BertForSequenceClassification")) as llm:
        refused: list[tuple[str, dict[str, Any]]] = [
            (
                r"task: got 'embed'; this model supports classify, token_classify",
                {"task": "embed"},
            ),
            ("task: 'clasify' is none of .* did you mean 'classify'", {"task": "clasify"}),
            ("dimensions: only embeddings can be truncated", {"dimensions": 4}),
            ("returned_token_ids: 7 is outside the 3 columns", {"returned_token_ids": [7]}),
            ("truncate_prompt_tokens: must be at most 128", {"truncate_prompt_tokens": 500}),
        ]
        for message, fields in refused:
            with pytest.raises(InvalidRequest, match=message):
                llm.encode(prompts[0], PoolingParams(**fields), use_tqdm=False)
        with pytest.raises(InvalidRequest, match="pooling_params"):
            llm.encode(prompts, [PoolingParams()], use_tqdm=False)
        with pytest.raises(InvalidRequest, match="pooling_params: must be PoolingParams"):
            llm.encode(prompts, SamplingParams(), use_tqdm=False)
        with pytest.raises(InvalidRequest, match="has 3 texts for the 2 of data_2"):
            llm.score(["a", "b", "c"], ["d", "e"], use_tqdm=False)


def test_use_activation_false_returns_scores(
    checkpoint: Checkpoint, engine: Open, prompts: list[list[int]]
) -> None:
    with engine(checkpoint("BertForSequenceClassification")) as llm:
        plain = llm.classify(prompts, PoolingParams(use_activation=False), use_tqdm=False)
        sure = llm.classify(prompts, use_tqdm=False)
    for scores, probabilities in zip(plain, sure, strict=True):
        expected = torch.tensor(scores.outputs.probs).softmax(-1)
        torch.testing.assert_close(torch.tensor(probabilities.outputs.probs), expected)
        assert probabilities.outputs.num_classes == 3


def test_engine_process_pools_alike(
    checkpoint: Checkpoint, engine: Open, prompts: list[list[int]]
) -> None:
    folder = checkpoint("BertModel")
    with engine(folder) as llm:
        expected = numbers(llm, prompts)

    async def collect() -> list[torch.Tensor]:
        served = AsyncLLM(
            str(folder), dtype="float32", max_model_len=128, num_threads=1, log_level="error"
        )
        try:
            found = []
            for index, ids in enumerate(prompts):
                async for output in served.encode(ids, PoolingParams(), str(index)):
                    assert output.finished
                    found.append(output.outputs.data)
            with pytest.raises(InvalidRequest, match="this model supports"):
                await anext(served.encode(prompts[0], PoolingParams(task="classify"), "refused"))
            return found
        finally:
            served.shutdown()

    for ours, target in zip(asyncio.run(collect()), expected, strict=True):
        torch.testing.assert_close(ours, target, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
@pytest.mark.parametrize(
    "name", ["BertForSequenceClassification", "Qwen3ForCausalLM", "MPNetModel", "T5EncoderModel"]
)
def test_pooling_tp2_matches_tp1(
    name: str, ranks: dict[str, int], checkpoint: Checkpoint, engine: Open, prompts: list[list[int]]
) -> None:
    with engine(checkpoint(name), runner="pooling") as llm:
        expected = numbers(llm, prompts)
    with engine(checkpoint(name), runner="pooling", **ranks) as llm:
        for ours, target in zip(numbers(llm, prompts), expected, strict=True):
            torch.testing.assert_close(ours, target, atol=1e-4, rtol=0)
