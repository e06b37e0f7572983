"""Texts around the short context of tiny models, with transformers' greedy answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams
from core.testing.tiny_configs import VOCAB

SHORT_CONTEXT = 48
"""`original_max_position_embeddings` of the tiny checkpoints."""
NUM_GENERATED = 12
GAP = 1e-3
LENGTHS = (1, 30, 36, 37, 40, 46, 47, 48, 49, 60)
"""Texts that stay short, that outgrow the short context, and that are long from the start."""
DRAFTS = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "adaptive": False,
}
FACTORS = [1.0 + i / 8 for i in range(8)], [1.0 + i for i in range(8)]
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": FACTORS[0],
    "long_factor": FACTORS[1],
    "original_max_position_embeddings": SHORT_CONTEXT,
}
LATENT_ROPE = {**LONG_ROPE, "short_factor": FACTORS[0][:4], "long_factor": FACTORS[1][:4]}
TYPES: dict[str, dict[str, Any]] = {
    "Phi3ForCausalLM": {},
    "LlamaForCausalLM": {"rope_parameters": LONG_ROPE},
    "MiniCPM3ForCausalLM": {
        "rope_parameters": LATENT_ROPE,
        "original_max_position_embeddings": SHORT_CONTEXT,
    },
}
Expected = tuple[list[int], list[int], list[float]]
"""A prompt, its greedy tokens, and their log-probabilities."""


@torch.inference_mode()
def expect(model: Any, length: int) -> Expected:
    """Return transformers' results of a prompt without near ties."""
    for seed in range(100):
        generator = torch.Generator().manual_seed(1000 * seed + length)
        half = torch.randint(0, VOCAB - 3, (-(-length // 2),), generator=generator).tolist()
        tokens = (half * 2)[:length]
        scores: list[float] = []
        gaps = []
        for _ in range(NUM_GENERATED):
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            best = logits.topk(2)
            gaps.append(float(best.values[0] - best.values[1]))
            tokens.append(int(best.indices[0]))
            scores.append(float(logits.log_softmax(-1)[tokens[-1]]))
        if min(gaps) >= GAP:
            return tokens[:length], tokens[length:], scores
    raise AssertionError("no prompt without a tie was found")


def open_engine(folder: Path, **settings: Any) -> LLM:
    defaults: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "num_threads": 1}
    defaults |= {"kv_cache_memory_bytes": 1 << 22, "log_level": "error"}
    return LLM(str(folder), **(defaults | settings))


def assert_equal(llm: LLM, expected: list[Expected], **params: Any) -> list[Any]:
    sampling = SamplingParams(
        temperature=0, max_tokens=NUM_GENERATED, ignore_eos=True, logprobs=0, **params
    )
    outputs = llm.generate([prompt for prompt, *_ in expected], sampling, use_tqdm=False)
    for output, (prompt, tokens, scores) in zip(outputs, expected, strict=True):
        completion = output.outputs[0]
        assert list(completion.token_ids) == tokens, f"prompt of {len(prompt)}"
        assert completion.logprobs is not None
        found = [
            each[token].logprob for each, token in zip(completion.logprobs, tokens, strict=True)
        ]
        assert found == pytest.approx(scores, abs=1e-3), f"prompt of {len(prompt)}"
    return outputs
