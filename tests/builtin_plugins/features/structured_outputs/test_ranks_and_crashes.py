"""Constraints with worker processes: ranks agree, and requests survive an engine crash."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams

pytest.importorskip("xgrammar")
pytestmark = pytest.mark.slow
FORM = StructuredOutputsParams(regex=r"([a-z]{3}[0-9]{2} ){12}")


def params(seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=100, temperature=1.0, seed=seed, structured_outputs=FORM)


def test_tp2_matches_tp1(llm: LLM, open_llm: Callable[..., LLM]) -> None:
    requests = [params(seed) for seed in range(3)]
    alone = llm.generate(["x"] * 3, requests, use_tqdm=False)
    apart = open_llm(tensor_parallel_size=2).generate(["x"] * 3, requests, use_tqdm=False)
    assert [o.error for o in apart] == [None] * 3
    assert [o.outputs[0].text for o in apart] == [o.outputs[0].text for o in alone]


def test_grammar_resumes_after_an_engine_crash(llm: LLM, checkpoint: Path) -> None:
    async def run() -> str:
        engine = AsyncLLM(
            str(checkpoint), max_model_len=480, kv_cache_memory_bytes=1 << 25, log_level="error"
        )
        try:
            killed = False
            text = ""
            async for output in engine.generate("x", params(1), "r"):
                text = output.outputs[0].text
                if not killed and len(text) > 10:
                    killed = True
                    client: Any = engine._client
                    os.kill(client.child.pid, signal.SIGKILL)
            assert killed
            return text
        finally:
            engine.shutdown()

    assert asyncio.run(run()) == llm.generate("x", params(1), use_tqdm=False)[0].outputs[0].text
