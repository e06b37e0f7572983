"""Engines for 32 small requests at once, engine variants, and the requests."""

from __future__ import annotations

from random import Random
from typing import Any

from core import LLM, SamplingParams
from core.testing.checkpoints import VOCAB

BASE: dict[str, Any] = {
    "max_model_len": 128,
    "max_num_seqs": 32,
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "kv_cache_memory_bytes": 32 << 20,
    "block_size": 8,
    "num_threads": 1,
    "log_level": "error",
    "mamba_block_size": 16,
    "enable_prefix_caching": True,
}
TREE = "[(0,),(1,),(2,),(0,0),(0,1),(1,0),(0,0,0),(0,1,0),(1,0,0),(0,0,0,0),(1,0,0,0),(1,0,0,0,0)]"
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "depth 2": {"async_scheduling": True},
    "a budget of 48 tokens": {"max_num_batched_tokens": 48},
    "few rows": {"max_num_seqs": 5},
    "few blocks": {"num_gpu_blocks_override": 90, "kv_cache_memory_bytes": None},
    "blocks of 16": {"block_size": 16},
    "reference attention": {"attention_backend": "reference"},
    "no prefix cache": {"enable_prefix_caching": False},
}


def requests() -> tuple[list[Any], list[SamplingParams]]:
    """Return prompts, some with common prefixes, and mostly greedy sampling parameters."""
    draw = Random(3)
    shared = [draw.randrange(VOCAB - 3) for _ in range(40)]
    prompts = [
        shared[: 8 * (i % 6)] + [draw.randrange(VOCAB - 3) for _ in range(1 + draw.randrange(30))]
        for i in range(32)
    ]
    sampling: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "repetition_penalty": 1.1, "logprobs": 1},
        {"temperature": 0},
        {"temperature": 0.8, "top_p": 0.95, "seed": 7},
    ]
    params = [
        SamplingParams(
            max_tokens=4 + draw.randrange(30),
            ignore_eos=True,
            detokenize=False,
            **sampling[i % len(sampling)],
        )
        for i in range(32)
    ]
    return [{"prompt_token_ids": prompt} for prompt in prompts], params


def answers(llm: LLM, rounds: int = 2) -> list[tuple[int, ...]]:
    """Return all tokens; the second round hits the prefix cache."""
    prompts, params = requests()
    outputs = [o for _ in range(rounds) for o in llm.generate(prompts, params, use_tqdm=False)]
    assert not any(o.error for o in outputs), [o.error for o in outputs if o.error]
    return [tuple(o.outputs[0].token_ids) for o in outputs]
