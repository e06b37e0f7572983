"""Engines with quantized KV caches: near full precision, and invariant to scheduling."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.errors import ConfigError, EngineError, ModelError
from core.testing.checkpoints import make_checkpoint
from core.testing.invariants import check_scheduler

PROMPTS = [[2 + (i * 5 + j * j) % 60 for j in range(45)] for i in range(6)]
PARAMS = SamplingParams(
    temperature=0, max_tokens=12, ignore_eos=True, detokenize=False, logprobs=1, prompt_logprobs=0
)
PLAIN = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "max_num_seqs": 4,
    "max_model_len": 128,
    "block_size": 8,
    "num_threads": 1,
    "num_gpu_blocks_override": 60,
}
KINDS = ["fp8", "fp8_e5m2", "int8"]
ARCHITECTURES = ["LlamaForCausalLM", "Gemma2ForCausalLM", "DeepseekV2ForCausalLM"]
"""All tokens, windows and latents."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("llama"), seed=3)


def open_llm(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), **SETTINGS | {"dtype": "float32"} | options)


def tokens_of(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    outputs = llm.generate(prompts, PLAIN, use_tqdm=False)
    check_scheduler(llm.core.scheduler)
    return [list(output.outputs[0].token_ids) for output in outputs]


def logprobs_of(llm: LLM) -> list[float]:
    """Return the prompt logprobs of every token."""
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [
        logprobs[token].logprob
        for output, prompt in zip(outputs, PROMPTS, strict=True)
        for token, logprobs in zip(prompt[1:], (output.prompt_logprobs or [])[1:], strict=True)
    ]


@pytest.mark.parametrize(
    "architecture",
    [ARCHITECTURES[0], *(pytest.param(a, marks=pytest.mark.slow) for a in ARCHITECTURES[1:])],
)
def test_logprobs_with_quantized_kv_are_near_full_precision(
    architecture: str, tmp_path: Path
) -> None:
    folder = make_checkpoint(architecture, tmp_path, seed=3)
    full = logprobs_of(llm := open_llm(folder))
    bytes_of = {"auto": sum(pool.block_bytes for pool in llm.core.scheduler.kv.layout.pools)}
    llm.shutdown()
    far = {}
    for kind in KINDS:
        own = logprobs_of(llm := open_llm(folder, kv_cache_dtype=kind))
        far[kind] = fmean(abs(a - b) for a, b in zip(full, own, strict=True))
        bytes_of[kind] = sum(pool.block_bytes for pool in llm.core.scheduler.kv.layout.pools)
        llm.shutdown()
    # Rounding says what lies between them: one fractional bit less doubles the distance. How far
    # depends on the random weights.
    assert 1.5 < far["fp8_e5m2"] / far["fp8"] < 2.5, far
    assert 0 < far["int8"] < far["fp8"] / 2, far
    assert far["int8"] < 0.1, far
    assert bytes_of["fp8"] * 4 == bytes_of["fp8_e5m2"] * 4 == bytes_of["auto"]
    assert bytes_of["fp8"] < bytes_of["int8"] < bytes_of["auto"] // 2


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[:2]), "int8"]
)
def test_quantized_kv_tokens_are_invariant_to_scheduling(kind: str, llama: Path) -> None:
    """With and without prefix cache, in chunks, after preemption, with draft tokens."""
    llm = open_llm(llama, kv_cache_dtype=kind, enable_prefix_caching=False)
    expected = tokens_of(llm)
    llm.shutdown()
    ways: list[dict[str, Any]] = [
        {},
        {"max_num_batched_tokens": 16},
        {"num_gpu_blocks_override": 17},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    ]
    for way in ways:
        llm = open_llm(llama, kv_cache_dtype=kind, **way)
        assert tokens_of(llm) == expected, way
        assert tokens_of(llm) == expected, way  # of which the beginnings are found again
        llm.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [{"tensor_parallel_size": 2}, {"attention_backend": "torch"}, {"calculate_kv_scales": True}],
    ids=str,
)
def test_ranks_and_backends_write_equal_quantized_kv(way: dict[str, Any], llama: Path) -> None:
    kind = "fp8" if "calculate_kv_scales" in way else "int8"
    llm = open_llm(llama, kv_cache_dtype="int8")
    expected = tokens_of(llm)
    llm.shutdown()
    llm = open_llm(llama, kv_cache_dtype=kind, **way)
    found = tokens_of(llm)
    llm.shutdown()
    if kind == "int8":
        assert found == expected
    else:
        assert [tokens[0] for tokens in found] == [tokens[0] for tokens in expected]


def test_file_tier_separates_blocks_by_kv_dtype(llama: Path, tmp_path: Path) -> None:
    def hits(kind: str) -> int:
        transfer = {"kv_connector": "disk", "kv_connector_extra_config": {"folder": str(tmp_path)}}
        llm = open_llm(llama, kv_cache_dtype=kind, kv_transfer_config=transfer)
        (output,) = llm.generate([PROMPTS[0]], PLAIN, use_tqdm=False)
        llm.shutdown()
        tokens.setdefault(kind, list(output.outputs[0].token_ids))
        assert tokens[kind] == list(output.outputs[0].token_ids)
        return output.num_cached_tokens or 0

    tokens: dict[str, list[int]] = {}
    assert [hits(kind) for kind in ("auto", "int8", "fp8")] == [0, 0, 0]
    assert [hits(kind) for kind in ("auto", "int8", "fp8")] == [40, 40, 40]


def test_unsupported_kv_dtypes_are_rejected(llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_dtype.*fp8_ds_mla.*fp8_e4m3"):
        open_llm(llama, kv_cache_dtype="fp8_ds_mla")
    with pytest.raises(
        (EngineError, ModelError),
        match=r"--kv-cache-dtype int8: no layer of this model supports it \(supported: float32\)",
    ):
        LLM(
            "fake:",
            **SETTINGS
            | {
                "dtype": "float32",
                "kv_cache_dtype": "int8",
                "plugins": ["core.testing.fake_model"],
            },
        )
