"""The client `thread` wakes up after every batching window."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from core import AsyncLLM, SamplingParams
from core.engine.thread_client import ThreadClient
from tests.timeouts import TIMEOUT_S


def test_batching_window_ends_however_short_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """`queue.SimpleQueue.get` of Python 3.11 and 3.12 waits without end if its timeout has passed
    when it begins to wait: one of some thousand requests. tests/repo/test_wall_clock.py refuses it.
    """
    engine = AsyncLLM("scripted:", max_model_len=64, disable_frontend_multiprocessing=True)
    client = engine._client
    assert isinstance(client, ThreadClient)
    calls = count()

    def window() -> float:
        if next(calls) % 2 == 0:
            client.call("reset_prefix_cache")  # arrives while the thread does not wait
        return 1e-9

    monkeypatch.setattr(client._core, "batching_window_s", window)

    async def complete_many() -> None:
        for i in range(600):
            async for output in engine.generate("a", SamplingParams(max_tokens=1), str(i)):
                assert output.outputs[0].text == "a"

    try:
        asyncio.run(asyncio.wait_for(complete_many(), TIMEOUT_S))
    finally:
        engine.shutdown()
