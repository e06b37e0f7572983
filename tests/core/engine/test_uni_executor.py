"""The in-process executor: conformance, and identical tokens with asynchronous scheduling."""

from __future__ import annotations

from typing import Any

import pytest

from core import LLM, SamplingParams
from core.testing import conformance

PROMPTS = [[5, 9, 30], [7], [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], [22, 23]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=1.2, top_k=10, seed=3, max_tokens=20, logprobs=2),
    SamplingParams(
        temperature=0.9, top_p=0.8, frequency_penalty=0.5, seed=4, max_tokens=7, prompt_logprobs=1
    ),
    SamplingParams(
        temperature=0, stop_token_ids=[9, 10, 11, 12], min_tokens=2, max_tokens=30, ignore_eos=True
    ),
]


def outputs(**engine: Any) -> list[Any]:
    settings = {
        "dtype": "float32",
        "max_model_len": 48,
        "max_num_batched_tokens": 8,
        "block_size": 4,
        "seed": 1,
    }
    with LLM("fake:", plugins=["core.testing.fake_model"], **settings, **engine) as llm:
        answers = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [
        (o.token_ids, o.finish_reason, _numbers(a.prompt_logprobs), _numbers(o.logprobs))
        for a in answers
        for o in a.outputs
    ]


def _numbers(logprobs: Any) -> Any:
    """Return approximate log-probabilities by token id, for each position.

    A preempted request is recomputed in another batch, which changes the rounding of sums.
    """
    positions = [each or {} for each in logprobs or ()]
    return [
        {token: pytest.approx(entry.logprob, abs=1e-4) for token, entry in each.items()}
        for each in positions
    ]


@pytest.mark.parametrize("blocks", [12, 64], ids=["preempting", "roomy"])
def test_async_scheduling_gives_identical_tokens(blocks: int) -> None:
    plain = outputs(
        num_gpu_blocks_override=blocks, skip_tokenizer_init=True, async_scheduling=False
    )
    ahead = outputs(num_gpu_blocks_override=blocks, skip_tokenizer_init=True, async_scheduling=True)
    assert [each[:2] for each in ahead] == [each[:2] for each in plain]
    assert [each[2:] for each in ahead] == [each[2:] for each in plain]


@pytest.mark.parametrize(
    "case", [c for c in conformance.cases("kernel") if c.subject.kind == "executors"], ids=str
)
def test_uni_passes_the_executor_suite(case: conformance.Case) -> None:
    case()
