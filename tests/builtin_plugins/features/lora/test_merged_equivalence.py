"""Tokens with adapters equal those of merged checkpoints, for each architecture and batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core import LoRARequest
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.features.lora.adapter_writer import make_adapter, merge
from tests.builtin_plugins.features.lora.outputs import LORA, Tokens, counted, run

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
DEMO = Path(__file__).parents[4] / "builtin_plugins" / "model_sources" / "demo" / "model"


def only_states(model: Path) -> bool:
    """Return whether every row fits, whatever the number of blocks."""
    return bool(json.loads((model / "config.json").read_text())["model_type"] == "mamba2")


def prepared(
    architecture: str, tmp_path: Path
) -> tuple[Path, list[LoRARequest | None], list[Tokens]]:
    """Return a checkpoint, adapters of three ranks and none, and the expected tokens."""
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
"""Models with several KV groups need more blocks per request."""


@pytest.mark.parametrize(
    "architecture", [pytest.param(each, marks=pytest.mark.slow) for each in ARCHITECTURES]
)
def test_mixed_batch_matches_merged_checkpoints(architecture: str, tmp_path: Path) -> None:
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


def test_chunked_prefill_matches_merged_checkpoints(tmp_path: Path) -> None:
    model, adapters, expected = prepared("DeepseekV3ForCausalLM", tmp_path)
    assert run(model, adapters, **LORA | BATCHES["chunks"]) == expected
