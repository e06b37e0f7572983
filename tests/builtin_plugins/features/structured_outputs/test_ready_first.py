"""A start does not wait for grammar processes: only the first constrained requests do."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pytest

from builtin_plugins.features.structured_outputs import compiler_pool
from builtin_plugins.features.structured_outputs.worker import MaskWorker
from core import AsyncLLM, SamplingParams, StructuredOutputsParams

pytest.importorskip("xgrammar")
FORM = "[a-z]{3}[0-9]{2}"


async def final_text(engine: AsyncLLM, request_id: str, params: SamplingParams) -> str:
    outputs = [output async for output in engine.generate("x", params, request_id)]
    return outputs[-1].outputs[0].text


def test_engine_is_ready_before_grammar_processes_can_start(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_be_ready = threading.Event()
    is_ready = compiler_pool.ForkServer.is_ready
    monkeypatch.setattr(
        compiler_pool.ForkServer,
        "is_ready",
        lambda server: may_be_ready.is_set() and is_ready(server),
    )
    engine = AsyncLLM(
        str(checkpoint),
        max_model_len=480,
        kv_cache_memory_bytes=1 << 25,
        num_threads=1,
        log_level="error",
        disable_frontend_multiprocessing=True,
    )
    pool = engine._frontend.registry.shared("structured_outputs", lambda: None)
    MaskWorker(pool, serves=True)  # as in a server's engine process

    async def main() -> str:
        form = SamplingParams(max_tokens=20, structured_outputs=StructuredOutputsParams(regex=FORM))
        constrained = asyncio.ensure_future(final_text(engine, "form", form))
        await final_text(engine, "plain", SamplingParams(max_tokens=20))
        assert not constrained.done()
        may_be_ready.set()
        return await constrained

    try:
        assert re.fullmatch(FORM, asyncio.run(main()))
    finally:
        may_be_ready.set()
        engine.shutdown()
