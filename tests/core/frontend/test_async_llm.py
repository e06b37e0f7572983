"""`AsyncLLM` under cancellation, aborts, abandoned requests and a second event loop."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from core import AsyncLLM, SamplingParams
from core.engine.thread_client import ThreadClient
from core.errors import EngineDead, InvalidRequest
from core.testing.invariants import check_scheduler
from core.types import RequestOutput, RequestOutputKind
from tests.timeouts import TIMEOUT_S

LONG = "a text that is tokenized in a thread " * 400


KINDS = ["sync", "async", "process"]


def open_engine(kind: str) -> AsyncLLM:
    return AsyncLLM(
        "scripted:",
        max_model_len=256,
        num_gpu_blocks_override=300,
        block_size=4,
        async_scheduling=kind == "async",
        disable_frontend_multiprocessing=kind != "process",
        structured_outputs_config={"warm_up": False},
    )


@pytest.fixture(scope="module", params=KINDS)
def engine(request: pytest.FixtureRequest) -> Iterator[AsyncLLM]:
    """An engine shared by all tests that leave no request in it."""
    engine = open_engine(request.param)
    yield engine
    engine.shutdown()


@pytest.fixture(params=KINDS)
def new_engine(request: pytest.FixtureRequest) -> Iterator[AsyncLLM]:
    engine = open_engine(request.param)
    yield engine
    engine.shutdown()


async def last(engine: AsyncLLM, prompt: Any, request_id: str, **params: Any) -> RequestOutput:
    final = None
    async for output in engine.generate(
        prompt, SamplingParams(**{"max_tokens": 200, **params}), request_id
    ):
        final = output
    assert final is not None
    return final


async def assert_nothing_left(engine: AsyncLLM) -> None:
    # A step planned ahead of the last end holds its blocks until it returns: they are free a step
    # after the last request.
    async with asyncio.timeout(TIMEOUT_S):
        while (
            engine.health()["running"]
            or engine.health()["waiting"]
            or any(stats.kv_usage for stats in engine._last_stats.values())
        ):
            await asyncio.sleep(0.005)
    if isinstance(engine._client, ThreadClient):
        check_scheduler(engine._client._core.scheduler)
        assert not engine._client._core.has_work
    else:
        assert len(engine._client._requests) == 0
        assert engine._client._calls._cleared == []
    outputs = engine._streams.outputs
    assert (len(outputs), len(outputs._by_engine_id), len(engine._streams._mailboxes)) == (0, 0, 0)


def test_cancelled_and_aborted_requests_leave_no_state(engine: AsyncLLM) -> None:
    draw = random.Random(4)

    async def cancelled(i: int) -> None:
        task = asyncio.ensure_future(
            last(engine, "x" * draw.randint(1, 50), f"c{i}", n=draw.randint(1, 3))
        )
        await asyncio.sleep(draw.random() * 0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def aborted(i: int) -> None:
        task = asyncio.ensure_future(
            last(engine, "x" * 50, f"a{i}", n=draw.randint(1, 3), ignore_eos=True)
        )
        await asyncio.sleep(draw.random() * 0.1)
        await engine.abort(f"a{i}")
        await engine.abort(f"a{i}")
        reasons = {completion.finish_reason for completion in (await task).outputs}
        assert reasons <= {"abort", "length"}

    async def broken(i: int) -> None:
        with contextlib.suppress(ZeroDivisionError):
            async for _ in engine.generate("abc" * 20, SamplingParams(max_tokens=100), f"b{i}"):
                raise ZeroDivisionError

    async def main() -> None:
        await asyncio.gather(*(f(i) for i in range(60) for f in (cancelled, aborted, broken)))
        await assert_nothing_left(engine)

    asyncio.run(main())


def test_duplicate_request_id_is_refused(engine: AsyncLLM) -> None:
    async def main() -> None:
        runs = [
            last(engine, LONG, "same", truncate_prompt_tokens=20, max_tokens=30) for _ in range(3)
        ]
        results = await asyncio.wait_for(asyncio.gather(*runs, return_exceptions=True), TIMEOUT_S)
        assert [isinstance(result, RequestOutput) for result in results].count(True) == 1
        assert [isinstance(result, InvalidRequest) for result in results].count(True) == 2
        await assert_nothing_left(engine)

    asyncio.run(main())


def test_second_event_loop_is_refused_while_requests_are_open(engine: AsyncLLM) -> None:
    results: list[Any] = []

    def in_another_loop() -> None:
        try:
            results.append(asyncio.run(last(engine, "x", "other")))
        except RuntimeError as error:
            results.append(str(error))

    async def main() -> None:
        task = asyncio.ensure_future(last(engine, "mine " * 20, "mine"))
        await asyncio.sleep(0)
        thread = threading.Thread(target=in_another_loop)
        thread.start()
        await asyncio.to_thread(thread.join)
        if not isinstance(results[0], RequestOutput):  # else `mine` had ended before
            assert "one event loop" in results[0]
        assert (await asyncio.wait_for(task, TIMEOUT_S)).outputs[0].text == "mine " * 20

    asyncio.run(main())
    assert asyncio.run(last(engine, "later", "later")).outputs[0].text == "later"


def test_shutdown_ends_open_and_later_requests(new_engine: AsyncLLM) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(last(new_engine, "x" * 100, "open", ignore_eos=True))
        await asyncio.sleep(0.01)
        new_engine.shutdown()
        new_engine.shutdown()
        for work in (task, last(new_engine, "x", "later"), new_engine.reset_prefix_cache()):
            with pytest.raises(EngineDead):
                await asyncio.wait_for(work, TIMEOUT_S)
        assert len(new_engine._streams.outputs) == 0

    asyncio.run(main())


def test_every_request_is_counted_once(new_engine: AsyncLLM) -> None:
    async def main() -> None:
        await last(new_engine, "abcdef", "stopped", stop=["d"])
        await last(new_engine, "abcdef", "cut", max_tokens=2)
        async for _ in new_engine.generate(
            "x" * 50, SamplingParams(max_tokens=100, ignore_eos=True), "left"
        ):
            break
        with pytest.raises(InvalidRequest):
            await last(new_engine, "x" * 500, "refused")
        await assert_nothing_left(new_engine)

    asyncio.run(main())
    sink: Any = next(
        guarded.sink for guarded in new_engine.sinks.entries if guarded.name == "prometheus"
    )
    lines = sink.expose(new_engine.health())[0].decode().splitlines()
    counts = {
        line.split('"')[3]: line.split()[-1]
        for line in lines
        if line.startswith("engine_request_success_total")
    }
    assert counts == {"stop": "1.0", "length": "1.0", "abort": "1.0", "error": "0.0"}
    assert 'engine_num_requests_running{engine="0",model_name="scripted:"} 0.0' in lines


def test_joined_deltas_are_the_whole_text(engine: AsyncLLM) -> None:
    async def main() -> str:
        params = SamplingParams(max_tokens=200, output_kind=RequestOutputKind.DELTA, stop=["never"])
        return "".join(
            [o.outputs[0].text async for o in engine.generate("dé🦊中" * 9, params, "d")]
        )

    assert asyncio.run(main()) == "dé🦊中" * 9
