"""Rejection sampling keeps the target distribution: 50,000 samples against its logits."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core import LLM, SamplingParams

PLUGIN = str(Path(__file__).parent / "oracle.py")
DRAWS = 50_000
SIBLINGS = 50
MIN_EXPECTED = 8.0
VARIANTS: dict[str, dict[str, Any]] = {
    "cool": {"temperature": 0.7},
    "warm": {"temperature": 1.3},
    "top-p": {"temperature": 1.0, "top_p": 0.9},
    "min-p": {"temperature": 1.3, "min_p": 0.1},
    "penalties": {
        "temperature": 1.0,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.2,
    },
}
BASE: dict[str, Any] = {
    "max_num_seqs": 128,
    "max_model_len": 128,
    "dtype": "float32",
    "log_level": "error",
}
PROMPT = "Tell me a short story about"


def distribution(
    logits: np.ndarray, prompt: list[int], output: list[int], params: dict[str, Any]
) -> np.ndarray:
    """Return the reference distribution of the next token."""
    scores = logits.astype(np.float64).copy()
    seen = np.zeros(len(scores))
    for token in output:
        seen[token] += 1
    repeated = np.array(sorted({*prompt, *output}))
    penalty = params.get("repetition_penalty", 1.0)
    scores[repeated] = np.where(
        scores[repeated] > 0, scores[repeated] / penalty, scores[repeated] * penalty
    )
    scores -= params.get("frequency_penalty", 0.0) * seen + params.get("presence_penalty", 0.0) * (
        seen > 0
    )
    scores /= params["temperature"]
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    chances[chances < params.get("min_p", 0.0) * chances.max()] = 0.0
    order = np.argsort(-chances)
    before = np.cumsum(chances[order]) - chances[order]
    chances[order[before >= params.get("top_p", 1.0)]] = 0.0
    return chances / chances.sum()


def check(counts: Counter[int], chances: np.ndarray) -> None:
    """Chi-square test of counts against probabilities; rare tokens share a bin."""
    total = sum(counts.values())
    found = np.array([counts[token] for token in range(len(chances))])
    expected = total * chances
    assert not found[chances == 0].any(), "a token with probability 0 was sampled"
    often = expected >= MIN_EXPECTED
    bins = [
        (found[often], expected[often]),
        (found[~often].sum(keepdims=True), expected[~often].sum(keepdims=True)),
    ]
    observed, predicted = (np.concatenate(parts) for parts in zip(*bins, strict=True))
    observed = observed[predicted > 0.5]
    predicted = predicted[predicted > 0.5]
    if len(predicted) > 1:
        statistic = float(((observed - predicted) ** 2 / predicted).sum())
        degrees = torch.tensor((len(predicted) - 1) / 2)
        chance = float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2)))
        assert chance > 1e-4, (statistic, len(predicted))


def next_logits(llm: LLM, tokens: list[int]) -> np.ndarray:
    """Return the raw logits of the next token; penalties depend on their absolute values."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1, detokenize=False)
    output = llm.generate([{"prompt_token_ids": tokens}], params, use_tqdm=False)[0].outputs[0]
    entries = output.logprobs[0]  # type: ignore[index]
    return np.array([entries[token].logprob for token in range(len(entries))])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "tree"), [*((name, False) for name in VARIANTS), ("warm", True), ("top-p", True)]
)
def test_sampled_tokens_follow_target_distribution(variant: str, tree: bool) -> None:
    with LLM(**BASE, logprobs_mode="raw_logits", max_logprobs=-1) as plain:
        prompt = plain.get_tokenizer().encode(PROMPT)
        first = distribution(next_logits(plain, prompt), prompt, [], VARIANTS[variant])
        likely = [int(token) for token in np.argsort(-first)[:4]]
        second = distribution(
            next_logits(plain, [*prompt, likely[0]]), prompt, [likely[0]], VARIANTS[variant]
        )
        following = int(np.argmax(second))
        third = distribution(
            next_logits(plain, [*prompt, likely[0], following]),
            prompt,
            [likely[0], following],
            VARIANTS[variant],
        )
    tokens = [int(token) for token in (*np.argsort(-second)[:2], *np.argsort(-third)[:2])]
    config = {
        "method": "likely",
        "model": json.dumps(tokens),
        "num_speculative_tokens": 2,
        "adaptive": False,
    }
    if tree:
        nodes = "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0)]"
        config |= {
            "method": "thicket",
            "speculative_token_tree": nodes,
            "num_speculative_tokens": 6,
        }
    params = SamplingParams(
        max_tokens=4, ignore_eos=True, detokenize=False, n=SIBLINGS, **VARIANTS[variant]
    )
    with LLM(
        **BASE | ({"max_num_seqs": 4} if tree else {}), speculative_config=config, plugins=[PLUGIN]
    ) as llm:
        jobs = [{"prompt_token_ids": prompt}] * (DRAWS // SIBLINGS)
        outputs = llm.generate(jobs, params, use_tqdm=False)
    drawn = [tuple(each.token_ids) for output in outputs for each in output.outputs]
    assert len(drawn) == DRAWS
    num_accepted = sum(output.counts["spec_decode_num_accepted_tokens"] for output in outputs)
    assert num_accepted > 0.02 * DRAWS
    check(Counter(each[0] for each in drawn), first)
    check(Counter(each[1] for each in drawn if each[0] == likely[0]), second)
    check(Counter(each[2] for each in drawn if each[:2] == (likely[0], following)), third)
