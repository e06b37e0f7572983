"""Preempted and computed again, a request gets the tokens it would have got: to the bit, where rows
do not depend on others.

With the usual kernels a row's numbers depend on its neighbours in the last bits, and a draw may
fall between them. Here each row is computed as if it were alone, so that only a fault of preemption
could make a difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams

PLUGIN = Path(__file__).parent / "one_row" / "one_row_plugin.py"
PROMPTS = [f"User {i}: what is {37 * i % 91} + {53 * i % 89}? Tell me about it." for i in range(8)]
TOKENS = 30


def outputs(folder: Path, blocks: int, **settings: Any) -> tuple[list[tuple[Any, ...]], int]:
    """Return (tokens, log-probabilities) of every sequence, and the number of preemptions."""
    params = [
        SamplingParams(
            temperature=0.8,
            seed=i % 3,
            n=3,
            max_tokens=TOKENS,
            ignore_eos=True,
            logprobs=0,
            top_p=0.95,
        )
        for i in range(len(PROMPTS))
    ]
    with LLM(
        str(folder),
        dtype="float32",
        num_gpu_blocks_override=blocks,
        max_model_len=128,
        max_num_seqs=24,
        num_threads=1,
        **settings,
    ) as llm:
        found = llm.generate(PROMPTS, params, use_tqdm=False)
        preemptions = llm.core.scheduler.num_preemptions
    sequences = [sequence for output in found for sequence in output.outputs]
    results = [
        (
            tuple(s.token_ids),
            tuple(step[t].logprob for t, step in zip(s.token_ids, s.logprobs, strict=True)),
        )
        for s in sequences
    ]
    return results, preemptions


def test_preemption_is_bitwise_invariant_row_by_row(demo_folder: Path) -> None:
    alone = {"plugins": [f"+{PLUGIN}"], "attention_backend": "one_token"}
    roomy, none = outputs(demo_folder, 600, **alone)
    tight, many = outputs(demo_folder, 16, **alone)
    assert none == 0
    assert many > len(PROMPTS)
    assert [tokens for tokens, _ in tight] == [tokens for tokens, _ in roomy]
    assert tight == roomy


def test_preemption_differs_by_rounding_with_default_kernels(
    demo_folder: Path,
) -> None:
    """Wrong keys would show at once; a draw between two roundings ends the comparison."""
    roomy, _ = outputs(demo_folder, 600)
    tight, many = outputs(demo_folder, 16)
    assert many > len(PROMPTS)
    compared = 0
    for (one, its), (other, others) in zip(roomy, tight, strict=True):
        same = [a == b for a, b in zip(one, other, strict=True)]
        length = same.index(False) if False in same else len(same)
        assert its[:length] == pytest.approx(others[:length], abs=1e-4)
        compared += length
    assert compared > 0.8 * sum(len(tokens) for tokens, _ in roomy)
