"""Several engines: equal outputs whatever dies, answers by engine, and metrics of each."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from core import LLM, AsyncLLM
from core.errors import ConfigError, InvalidRequest
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.clients.data_parallel.engines import child, restarts, running, states
from tests.builtin_plugins.clients.streams import POISON, collect, params, prompt, streams, until
from tests.timeouts import TIMEOUT_S


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("llama")))


async def kill_at_random(engine: AsyncLLM, kills: int, size: int) -> None:
    """Kill engines at random times, also during restarts of others."""
    draw = random.Random(kills)
    for _ in range(kills):
        await asyncio.sleep(draw.random() * 0.3)
        rank = draw.randrange(size)
        await until(lambda rank=rank: child(engine, rank).is_alive)
        os.kill(child(engine, rank).pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("size", "kills", "rounds", "count"),
    [
        (2, 3, 2, 16),
        pytest.param(2, 20, 10, 64, marks=pytest.mark.slow),
        pytest.param(4, 20, 10, 64, marks=pytest.mark.slow),
    ],
)
def test_streams_complete_after_random_kills_of_engines(
    llama: str, size: int, kills: int, rounds: int, count: int
) -> None:
    async def main(engine: AsyncLLM) -> None:
        undisturbed = await streams(engine, 1, count)
        expected = [result for result in undisturbed for _ in range(rounds)]
        killing = asyncio.ensure_future(kill_at_random(engine, kills, size))
        assert await streams(engine, rounds, count) == expected
        await killing
        await until(lambda: states(engine) == ["ready"] * size)
        assert sum(restarts(engine)) > 0
        assert not engine._client._routed
        await until(lambda: engine.health()["running"] == 0)

    with running(llama, size) as engine:
        asyncio.run(main(engine))


@pytest.mark.parametrize("numbers", [(1, 3, 5, 7), (1,)], ids=["several", "alone"])
def test_requests_go_on_in_another_engine_before_theirs_is_back(
    llama: str, numbers: tuple[int, ...]
) -> None:
    async def main(engine: AsyncLLM) -> None:
        # Long enough that none ends before all have begun.
        expected = await asyncio.gather(*(collect(engine, i, max_tokens=400) for i in numbers))
        tasks = [asyncio.ensure_future(collect(engine, i, max_tokens=400)) for i in numbers]
        client = engine._client
        await until(lambda: len(client._routed) == len(numbers) and not client._waiting)
        killed = next(iter(client._routed.values())).engine.index
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        supervised = client.engines[killed].supervised
        # The engine is restarted after the answers have ended.
        supervised._pause = lambda: asyncio.run_coroutine_threadsafe(ended.wait(), loop).result()
        os.kill(child(engine, killed).pid, signal.SIGKILL)
        assert await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT_S) == expected
        assert [states(engine)[killed], states(engine)[1 - killed]] == ["restarting", "ready"]
        ended.set()
        await until(lambda: states(engine) == ["ready"] * 2)

    with running(llama) as engine:
        asyncio.run(main(engine))


@pytest.mark.slow
def test_request_that_kills_its_engine_fails_and_takes_no_other_engine_with_it(
    llama: str, tmp_path: Path
) -> None:
    plugin = tmp_path / "poison.py"
    plugin.write_text(POISON)

    async def poisonous(engine: AsyncLLM) -> Any:
        bad = params(0, max_tokens=20, extra_args={"way": "exit", "at_token": 5})
        return [output async for output in engine.generate([7, 8, 9], bad, "guilty")][-1]

    async def main(engine: AsyncLLM) -> None:
        expected = await asyncio.gather(*(collect(engine, i) for i in range(1, 6)))
        *others, last = await asyncio.gather(
            *(collect(engine, i) for i in range(1, 6)), poisonous(engine)
        )
        assert last.outputs[0].finish_reason == "error"
        assert "guilty" in (last.error or "")
        assert others == expected
        assert 0 in restarts(engine)

    with running(llama, plugins=[str(plugin)]) as engine:
        asyncio.run(main(engine))


def test_calls_answer_by_engine_also_when_one_dies_meanwhile(llama: str) -> None:
    async def main(engine: AsyncLLM) -> None:
        answers = await engine.call("reset_prefix_cache")
        assert [(each.engine, each.scheduler) for each in answers] == [(0, b"1"), (1, b"1")]
        os.kill(child(engine, 0).pid, signal.SIGSTOP)
        call = asyncio.ensure_future(engine.call("reset_prefix_cache"))
        whole = asyncio.ensure_future(engine.reset_prefix_cache())
        await until(lambda: len(engine._client.engines[0].supervised._calls) == 2)
        os.kill(child(engine, 0).pid, signal.SIGKILL)
        died, done = await asyncio.wait_for(call, TIMEOUT_S)
        assert (died.engine, died.died, died.scheduler) == (0, True, None)
        assert (done.engine, done.error, done.scheduler) == (1, "", b"1")
        assert await whole  # the restarted engine has an empty cache
        await until(lambda: states(engine) == ["ready"] * 2)
        with pytest.raises(InvalidRequest, match=r"unknown\.call"):
            await engine.call("unknown.call")

    with running(llama) as engine:
        asyncio.run(main(engine))


@pytest.mark.slow
def test_reset_is_false_while_one_engine_uses_blocks(llama: str) -> None:
    async def main(engine: AsyncLLM) -> None:
        task = asyncio.ensure_future(collect(engine, 1, max_tokens=400))
        await until(lambda: engine.health()["running"] == 1)
        assert not await engine.reset_prefix_cache()
        answers = await engine.call("reset_prefix_cache")
        assert sorted(each.scheduler or b"" for each in answers) == [b"0", b"1"]
        task.cancel()

    with running(llama) as engine:
        asyncio.run(main(engine))


@pytest.mark.slow
def test_turns_of_a_conversation_find_their_cache(llama: str) -> None:
    async def turn(engine: AsyncLLM, tokens: list[int]) -> Any:
        sampling = params(1, max_tokens=1)
        return [out async for out in engine.generate(tokens, sampling, f"turn-{len(tokens)}")][-1]

    async def main(engine: AsyncLLM) -> None:
        first = [5 + i % 80 for i in range(130)]
        other = [6 + i % 70 for i in range(130)]
        await turn(engine, first)
        await turn(engine, other[:129])
        loads = [each.num_requests for each in engine._client._balancer.loads]
        assert loads == [1, 1]
        for _ in range(3):
            assert (await turn(engine, [*first, 7, 8, 9])).num_cached_tokens >= 128
            first += [7, 8, 9]

    with running(llama) as engine:
        asyncio.run(main(engine))


def test_requests_may_name_their_engine(llama: str) -> None:
    async def main(engine: AsyncLLM) -> None:
        for rank in (1, 1, 0, 1):
            sampling = params(1, max_tokens=1)
            async for _ in engine.generate(prompt(1), sampling, "a", data_parallel_rank=rank):
                pass
        assert [each.num_requests for each in engine._client._balancer.loads] == [1, 3]
        for rank in (2, -1, True, "0"):
            with pytest.raises(
                InvalidRequest, match=r"data_parallel_rank: got .*; expected 0 to 1"
            ):
                async for _ in engine.generate(prompt(1), params(1), "a", data_parallel_rank=rank):
                    pass

    with running(llama) as engine:
        asyncio.run(main(engine))


@pytest.mark.slow
def test_clients_that_leave_at_once_leave_nothing(
    llama: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(engine: AsyncLLM) -> None:
        for rank in range(2):
            os.kill(child(engine, rank).pid, signal.SIGSTOP)
        task = asyncio.ensure_future(collect(engine, 1))
        await until(lambda: bool(engine._client._routed))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for rank in range(2):
            os.kill(child(engine, rank).pid, signal.SIGCONT)
        await engine.call("reset_prefix_cache")  # answered after the request
        await until(lambda: not engine._client._routed)
        await until(lambda: engine.health()["running"] == 0)
        assert [each.num_open for each in engine._client._balancer.loads] == [0, 0]
        assert "exception calling callback" not in caplog.text

    with running(llama) as engine:
        asyncio.run(main(engine))


@pytest.mark.slow
def test_an_engine_that_is_given_up_leaves_its_requests_to_the_others(llama: str) -> None:
    async def main(engine: AsyncLLM) -> None:
        async def answers() -> list[dict[str, Any]]:
            return await asyncio.gather(*(collect(engine, i, max_tokens=400) for i in range(6)))

        expected = await answers()
        task = asyncio.ensure_future(answers())
        await until(lambda: len(engine._client._routed) == 7 and not engine._client._waiting)
        os.kill(child(engine, 0).pid, signal.SIGKILL)
        assert await asyncio.wait_for(task, TIMEOUT_S) == expected
        await until(lambda: states(engine) == ["dead", "ready"])
        assert engine.state() == "ready"
        assert await answers() == expected
        assert "engine 0: dead" in engine.health()["reason"]
        reset = await engine.call("reset_prefix_cache")
        assert [bool(each.error) for each in reset] == [True, False]

    with running(llama, max_restarts=0) as engine:
        asyncio.run(main(engine))


@pytest.mark.parametrize("start", [LLM, AsyncLLM])
def test_several_engines_in_one_process_are_refused(llama: str, start: Any) -> None:
    own = {"disable_frontend_multiprocessing": True} if start is AsyncLLM else {}
    with pytest.raises(
        ConfigError, match=r"thread needs data_parallel_size.*here it is 2|needs data_parallel_size"
    ):
        start(llama, data_parallel_size=2, **own)
