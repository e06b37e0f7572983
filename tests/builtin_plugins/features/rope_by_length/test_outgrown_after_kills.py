"""Requests that outgrow the short context: recorded and replayed, and resumed after a killed
engine.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.features.rope_by_length.scheduling import LengthTracker
from builtin_plugins.scheduling_policies.fcfs import FirstCome
from core import AsyncLLM, SamplingParams
from core.step import EngineRequest
from core.testing.replay import replay
from tests.builtin_plugins.clients.streams import DELTA, until
from tests.builtin_plugins.features.rope_by_length.texts import (
    DRAFTS,
    LENGTHS,
    NUM_GENERATED,
    SHORT_CONTEXT,
    TYPES,
    Expected,
    assert_equal,
    open_engine,
)

Case = Callable[[str], tuple[Path, list[Expected]]]
WITHOUT = ["no:structured_outputs", "no:fair_scheduling", "no:kv_eviction", "no:metrics_prometheus"]
KILLS = {LENGTHS.index(40): (3, 10)}
"""By request: the numbers of generated tokens at which the engine is killed. A prompt of 40 tokens
is short at the first and has outgrown the short context at the second."""


def architectures(fast: str) -> list[Any]:
    """Return all architectures; those besides `fast` are slow."""
    return [
        pytest.param(each, marks=[] if each == fast else pytest.mark.slow, id=each)
        for each in TYPES
    ]


@pytest.mark.parametrize("architecture", architectures("Phi3ForCausalLM"))
@pytest.mark.parametrize("ahead", [False, True])
def test_recorded_run_replays_exactly(
    architecture: str, ahead: bool, case: Case, tmp_path: Path
) -> None:
    folder, expected = case(architecture)
    path = str(tmp_path / "run.journal")
    settings = {"max_num_batched_tokens": 16, "async_scheduling": ahead, "plugins": WITHOUT}
    with open_engine(folder, journal=path, **settings) as llm:
        assert_equal(llm, expected)
    report = replay(path, policy=FirstCome(), extensions=[LengthTracker(SHORT_CONTEXT)])
    assert report.difference is None
    assert report.num_plans > NUM_GENERATED


@pytest.mark.parametrize("architecture", architectures("Phi3ForCausalLM"))
def test_requests_resume_after_any_of_their_tokens(architecture: str, case: Case) -> None:
    """A restarted engine gets the request with the tokens that it had."""
    folder, expected = case(architecture)
    found: dict[str, list[int]] = {}
    left: dict[str, list[int]] = {}
    with open_engine(folder) as llm:
        for at, (prompt, tokens, _) in enumerate(expected):
            for count in range(NUM_GENERATED):
                request_id = f"{at}-{count}"
                request = EngineRequest(
                    request_id=request_id,
                    prompt_token_ids=prompt,
                    sampling=SamplingParams(temperature=0),
                    seed=0,
                    max_tokens=NUM_GENERATED,
                    output_token_ids=tokens[:count],
                )
                llm.core.add([request], resumed=True)
                left[request_id] = tokens[count:]
        while llm.core.has_work:
            for delta in llm.core.step():
                found.setdefault(delta.request_id, []).extend(delta.token_ids)
    assert found == left


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [None, DRAFTS], ids=["plain", "drafts"])
def test_answers_resume_after_the_engine_was_killed(
    drafts: dict[str, Any] | None, case: Case
) -> None:
    folder, expected = case("Phi3ForCausalLM")
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "num_threads": 1}
    settings |= {"speculative_config": drafts} if drafts else {}
    settings |= {"kv_cache_memory_bytes": 1 << 22, "log_level": "error"}
    engine = AsyncLLM(str(folder), structured_outputs_config={"warm_up": False}, **settings)
    try:
        found = asyncio.run(collect_with_kills(engine, expected))
        assert engine._client.status().restarts == sum(map(len, KILLS.values()))
    finally:
        engine.shutdown()
    for (prompt, tokens, scores), (own, logprobs, num_prompt_logprobs) in zip(
        expected, found, strict=True
    ):
        assert own == tokens, f"prompt of {len(prompt)}"
        assert logprobs == pytest.approx(scores, abs=1e-3), f"prompt of {len(prompt)}"
        assert num_prompt_logprobs == len(prompt)


def has_restarted(engine: AsyncLLM, before: int) -> bool:
    """Return whether the engine has restarted since it had so many restarts."""
    return engine._client.status().restarts > before


async def collect_with_kills(
    engine: AsyncLLM, expected: list[Expected]
) -> list[tuple[list[int], list[float], int]]:
    """Return the tokens of all requests, which run together, their log-probabilities, and the
    number of those of the prompt.
    """

    async def collect(at: int, prompt: list[int]) -> tuple[list[int], list[float], int]:
        kills = list(KILLS.get(at, ()))
        tokens: list[int] = []
        logprobs: list[float] = []
        num_prompt_logprobs = 0
        sampling = SamplingParams(
            temperature=0,
            max_tokens=NUM_GENERATED,
            ignore_eos=True,
            logprobs=0,
            prompt_logprobs=0,
            output_kind=DELTA,
        )
        async for output in engine.generate({"prompt_token_ids": prompt}, sampling, f"r{at}"):
            for part in output.outputs:
                tokens += part.token_ids
                pairs = zip(part.logprobs or (), part.token_ids, strict=True)
                logprobs += [each[token].logprob for each, token in pairs]
            num_prompt_logprobs = len(output.prompt_logprobs or ())
            if kills and len(tokens) >= kills[0]:
                kills.pop(0)
                restarts = engine._client.status().restarts
                os.kill(engine._client.child.pid, signal.SIGKILL)
                await until(partial(has_restarted, engine, restarts))
        return tokens, logprobs, num_prompt_logprobs

    return await asyncio.gather(*(collect(at, prompt) for at, (prompt, *_) in enumerate(expected)))
