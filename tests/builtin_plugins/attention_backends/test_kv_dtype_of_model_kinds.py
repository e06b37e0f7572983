"""`--kv-cache-dtype fp8` is served or refused by name on every kind of model, never ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.errors import ModelError
from core.testing.checkpoints import make_checkpoint

IDS = [5, 9, 30, 7, 22, 41, 8, 17, 3] * 3
SERVED = {
    "latent attention": "DeepseekV3ForCausalLM",
    "encoder and decoder": "BartForConditionalGeneration",
    "windows": "Gemma3ForCausalLM",
    "sinks": "GptOssForCausalLM",
    "chunks": "Llama4ForCausalLM",
    "linear attention": "Qwen3NextForCausalLM",
    "state space and attention": "JambaForCausalLM",
    "convolutions and attention": "Lfm2ForCausalLM",
    "sparse attention": "DeepseekV32ForCausalLM",
    "relative positions": "T5ForConditionalGeneration",
    "learned positions": "GPTNeoForCausalLM",
}
REFUSED = {"state space": "MambaForCausalLM", "encoder": "BertModel"}
FAST = ("latent attention", "encoder and decoder")


def values(folder: Path, runner: str, kv_cache_dtype: str) -> list[float]:
    """Return log-probabilities, or the pooled numbers."""
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "runner": runner}
    prompt: Any = {"prompt_token_ids": IDS}
    with LLM(str(folder), kv_cache_dtype=kv_cache_dtype, **settings) as llm:
        if runner == "pooling":
            (pooled,) = llm.encode([prompt], use_tqdm=False)
            return [float(number) for number in pooled.outputs.data.flatten()]
        params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=1)
        (output,) = llm.generate([prompt], params, use_tqdm=False)
    assert output.outputs[0].logprobs is not None
    return [entry.logprob for each in output.outputs[0].logprobs for entry in each.values()]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in FAST else pytest.mark.slow) for kind in SERVED]
)
def test_fp8_cache_is_used(kind: str, tmp_path: Path) -> None:
    folder = make_checkpoint(SERVED[kind], tmp_path, seed=3)
    assert values(folder, "auto", "fp8") != values(folder, "auto", "auto")


def test_fp8_cache_is_used_by_a_pooled_decoder(tmp_path: Path) -> None:
    folder = make_checkpoint("LlamaForCausalLM", tmp_path, seed=3)
    assert values(folder, "pooling", "fp8") != values(folder, "pooling", "auto")


@pytest.mark.parametrize("kind", REFUSED)
def test_fp8_cache_is_refused_without_keys_and_values(kind: str, tmp_path: Path) -> None:
    folder = make_checkpoint(REFUSED[kind], tmp_path, seed=3)
    with pytest.raises(ModelError, match=r"--kv-cache-dtype fp8: no layer of this model supports"):
        values(folder, "auto", "fp8")
