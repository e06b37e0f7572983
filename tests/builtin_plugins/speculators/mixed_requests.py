"""Engines with and without speculation, and requests with tokens that must match."""

from __future__ import annotations

from inspect import unwrap
from typing import Any

from core import LLM, SamplingParams

BASE: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 4,
    "dtype": "float32",
    "kv_cache_memory_bytes": 16 << 20,
    "block_size": 8,
    "num_threads": 1,
}
NGRAM: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 5, "adaptive": False}
TEXTS = (
    "one two three four one two three four one two three",
    "Say hello hello hello.",
    "What is 12 + 30?",
    "Repeat this list: red, green, blue, red, green, blue, red",
)
Tokens = list[tuple[int, ...]]


def open_llm(speculative: dict[str, Any] | None, **options: Any) -> LLM:
    return LLM(speculative_config=speculative, **BASE | options)


def mixed(max_tokens: int = 30) -> list[SamplingParams]:
    """Return greedy, seeded, penalized and stopped sampling, with logprobs and several outputs."""
    common: dict[str, Any] = {"max_tokens": max_tokens, "seed": 7}
    return [
        SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True),
        SamplingParams(temperature=0.8, top_k=20, top_p=0.95, **common),
        SamplingParams(
            temperature=0.9,
            repetition_penalty=1.1,
            presence_penalty=0.3,
            min_tokens=12,
            logprobs=2,
            **common,
        ),
        SamplingParams(
            temperature=1.3,
            min_p=0.1,
            frequency_penalty=0.5,
            logit_bias={100: -5.0, 7: 3.0},
            **common,
        ),
        SamplingParams(temperature=0, stop=["three"], max_tokens=max_tokens),
        SamplingParams(temperature=0.7, n=3, bad_words=["hello"], **common),
        SamplingParams(temperature=0, ignore_eos=True, prompt_logprobs=1, max_tokens=1),
        SamplingParams(temperature=0, ignore_eos=True, max_tokens=2),
    ]


def run(llm: LLM, max_tokens: int = 30, rounds: int = 1) -> list[Any]:
    """Return tokens, texts, ends and probabilities of every text with every kind of parameters."""
    prompts = llm.preprocess_chat([[{"role": "user", "content": text}] for text in TEXTS])
    jobs = [(prompt, params) for params in mixed(max_tokens) for prompt in prompts] * rounds
    outputs = llm.generate(
        [prompt for prompt, _ in jobs], [params for _, params in jobs], use_tqdm=False
    )
    assert not any(output.error for output in outputs), [
        output.error for output in outputs if output.error
    ]
    return [
        (
            tuple(each.token_ids),
            each.text,
            each.finish_reason,
            each.stop_reason,
            _values(each.logprobs),
        )
        for output in outputs
        for each in output.outputs
    ]


def _values(logprobs: Any) -> list[dict[int, float]]:
    """Return log-probabilities by token, as coarse as sums in another order may make them."""
    return [
        {t: round(entry.logprob, 2) + 0.0 for t, entry in position.items()}
        for position in logprobs or ()
    ]


def counted(llm: LLM) -> Any:
    """Return what the scheduler half has counted of all requests."""
    planned = dict(llm.core.scheduler._extensions._planned)
    return unwrap(planned["speculation"]).__self__.total
