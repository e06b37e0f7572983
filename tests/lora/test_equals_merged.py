"""Tokens with adapters are those of checkpoints into which they are merged: every architecture, any
batch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core import LLM, LoRARequest, SamplingParams
from core.testing.checkpoints import make_checkpoint
from tests.lora.made_adapters import make_adapter, merge

RANKS = (4, 8, 64)
ARCHITECTURES = (
    "LlamaForCausalLM",
    "Gemma2ForCausalLM",
    "Phi3ForCausalLM",
    "MixtralForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen2MoeForCausalLM",
    "GptOssForCausalLM",
    "DeepseekV3ForCausalLM",
    "Mamba2ForCausalLM",
    "JambaForCausalLM",
    "GPT2LMHeadModel",
    "demo",
)
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 160,
    "max_num_seqs": 8,
    "num_threads": 1,
    "kv_cache_memory_bytes": 16 << 20,
}
SHARED = [(7 * i * i + 3 * i) % 290 + 4 for i in range(40)]
PROMPTS = [[*SHARED[:length], 9 + length] for length in (40, 33, 12, 5)]
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
Tokens = list[tuple[int, ...]]
DEMO = Path(__file__).parents[2] / "builtin_plugins" / "model_sources" / "demo" / "model"


def run(model: Path, adapters: list[LoRARequest | None], **options: Any) -> list[Tokens]:
    """Return, for each adapter, the tokens of every prompt; all in one batch."""
    return counted(model, adapters, **options)[0]


def counted(
    model: Path, adapters: list[LoRARequest | None], **options: Any
) -> tuple[list[Tokens], int]:
    """Return the same, and how often one was preempted."""
    jobs = [(prompt, adapter) for prompt in PROMPTS for adapter in adapters]
    with LLM(str(model), **SETTINGS | options) as llm:
        given = {"lora_request": [adapter for _, adapter in jobs]} if any(adapters) else {}
        outputs = llm.generate([prompt for prompt, _ in jobs], PARAMS, use_tqdm=False, **given)
        assert [output.error for output in outputs if output.error] == []
        llm.core.scheduler.check()
        preempted = llm.core.scheduler.num_preemptions
    found = [tuple(output.outputs[0].token_ids) for output in outputs]
    return [found[index :: len(adapters)] for index in range(len(adapters))], preempted


def only_states(model: Path) -> bool:
    """Say whether there is room for every row, whatever blocks there are."""
    return bool(json.loads((model / "config.json").read_text())["model_type"] == "mamba2")


def prepared(
    architecture: str, tmp_path: Path
) -> tuple[Path, list[LoRARequest | None], list[Tokens]]:
    """Return a checkpoint, adapters of three ranks and none, and the tokens of the merged
    checkpoints.
    """
    model = (
        DEMO
        if architecture == "demo"
        else make_checkpoint(architecture, tmp_path / "model", seed=3)
    )
    adapters: list[LoRARequest | None] = [None]
    expected = run(model, [None])
    for number, rank in enumerate(RANKS, 1):
        folder = make_adapter(model, tmp_path / f"adapter-{rank}", rank, seed=rank)
        adapters.append(LoRARequest(f"rank-{rank}", number, str(folder)))
        expected += run(merge(model, folder, tmp_path / f"merged-{rank}"), [None])
    assert len({tuple(each) for each in expected}) == 4, "every adapter changes what the model says"
    return model, adapters, expected


LORA: dict[str, Any] = {"enable_lora": True, "max_loras": 3, "max_lora_rank": 64}
BATCHES: dict[str, dict[str, Any]] = {
    "room": {},
    "chunks": {"max_num_batched_tokens": 16, "max_num_seqs": 5},
    "one slot": {"max_loras": 1, "max_cpu_loras": 2},
}
TIGHT: dict[str, Any] = {"block_size": 8, "max_model_len": 64, "kv_cache_memory_bytes": None}
ONE_GROUP = (
    "LlamaForCausalLM",
    "Phi3ForCausalLM",
    "MixtralForCausalLM",
    "Qwen3MoeForCausalLM",
    "DeepseekV3ForCausalLM",
    "GPT2LMHeadModel",
)
"""Models that cache in several groups need more blocks for one request."""


@pytest.mark.parametrize(
    "architecture", [pytest.param(each, marks=pytest.mark.slow) for each in ARCHITECTURES]
)
def test_three_adapters_and_none_in_one_batch_equal_merged_checkpoints(
    architecture: str, tmp_path: Path
) -> None:
    model, adapters, expected = prepared(architecture, tmp_path)
    for name, options in BATCHES.items():
        assert run(model, adapters, **LORA | options) == expected, name
    preemptions = 0
    for blocks in (18, 14, 10) if architecture in ONE_GROUP else (28, 24):
        found, preempted = counted(model, adapters, **LORA | TIGHT, num_gpu_blocks_override=blocks)
        assert found == expected, f"{blocks} blocks"
        preemptions += preempted
    assert preemptions or only_states(model)
    for sharded in (False, True):
        split = {"tensor_parallel_size": 2, "fully_sharded_loras": sharded}
        assert run(model, adapters, **LORA | split) == expected, f"two ranks, {sharded}"


def test_one_architecture_in_small_chunks_equals_merged_checkpoints(tmp_path: Path) -> None:
    model, adapters, expected = prepared("DeepseekV3ForCausalLM", tmp_path)
    assert run(model, adapters, **LORA | BATCHES["chunks"]) == expected
