"""An engine process that is killed, frozen or crashed by a request: streams resume without loss."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.clients.process.request_tracker import RequestTracker
from core import AsyncLLM, SamplingParams
from core.errors import EngineDead, EngineError
from core.testing.checkpoints import make_checkpoint
from core.types import RequestOutput
from tests.builtin_plugins.clients.streams import POISON, collect, params, streams, until
from tests.timeouts import TIMEOUT_S

KILLS_ITSELF = '''
"""A plugin that kills the engine process in one of its hooks."""
import os
import signal

from core.api import hookimpl

{state}


@hookimpl
def {hook}({arguments}):
    if {condition}:
        os.kill(os.getpid(), signal.SIGKILL)
    return {result}
'''


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("llama")))


@contextmanager
def running(model: str, **settings: Any) -> Iterator[AsyncLLM]:
    defaults = {
        "dtype": "float32",
        "max_model_len": 512,
        "kv_cache_memory_bytes": 1 << 25,
        "num_threads": 1,
    }
    engine = AsyncLLM(
        model, **{"structured_outputs_config": {"warm_up": False}, **defaults, **settings}
    )
    try:
        yield engine
    finally:
        engine.shutdown()
        assert not engine._client.child.is_alive
        assert not Path(engine._client.child.channel.folder).exists()


@asynccontextmanager
async def killer(
    engine: AsyncLLM, kills: int, draw: random.Random, pause_s: float
) -> AsyncIterator[None]:
    """Kill the engine process at random times, including during restarts."""

    async def kill() -> None:
        for _ in range(kills):
            await asyncio.sleep(draw.random() * pause_s)
            await until(lambda: engine._client.child.is_alive)
            before = engine._client.status().restarts
            os.kill(engine._client.child.pid, signal.SIGKILL)
            if draw.random() < 0.8:
                await until(lambda before=before: engine._client.status().restarts > before)
                await until(lambda: engine.state() == "ready")

    task = asyncio.ensure_future(kill())
    yield
    await task


@pytest.mark.slow  # test_survival.py kills engines beneath a server in every run
@pytest.mark.parametrize(("kills", "rounds", "pause_s"), [(3, 2, 0.3), (50, 40, 1.0)])
def test_streams_complete_after_random_engine_kills(
    llama: str, kills: int, rounds: int, pause_s: float
) -> None:
    async def main(engine: AsyncLLM) -> None:
        undisturbed = await streams(engine)
        expected = [result for result in undisturbed for _ in range(rounds)]
        async with killer(engine, kills, random.Random(kills), pause_s):
            disturbed = await streams(engine, rounds)
        assert disturbed == expected
        status = engine._client.status()
        assert (status.state, 0 < status.restarts <= kills) == ("ready", True)
        assert len(engine._client._requests) == 0
        await until(lambda: engine.health()["running"] == 0)

    with running(llama) as engine:
        asyncio.run(main(engine))


def test_open_requests_are_used_under_their_lock_only(
    llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unlocked walk over them meets a change sometime, and ends the supervisor."""
    unlocked: set[str] = set()

    def checked(name: str, lock: Any, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(tracker: RequestTracker, *arguments: Any) -> Any:
            if not lock._is_owned():
                unlocked.add(name)
            return method(tracker, *arguments)

        return call

    async def main(engine: AsyncLLM) -> None:
        lock = engine._client._calls.lock
        for name, method in vars(RequestTracker).items():
            if callable(method) and not name.startswith("_"):
                monkeypatch.setattr(RequestTracker, name, checked(name, lock, method))
        async with killer(engine, 1, random.Random(0), 0.3):
            await streams(engine)

    with running(llama) as engine:
        asyncio.run(main(engine))
    assert unlocked == set()


@pytest.mark.parametrize(
    ("way", "at_token"),
    [
        ("exit", 5),
        pytest.param("kill", 0, marks=pytest.mark.slow),
        pytest.param("exit", 0, marks=pytest.mark.slow),
        pytest.param("kill", 5, marks=pytest.mark.slow),
    ],
)
def test_request_that_kills_the_engine_fails_and_others_complete(
    llama: str, tmp_path: Path, way: str, at_token: int
) -> None:
    plugin = tmp_path / "poison.py"
    plugin.write_text(POISON)

    async def poisonous(engine: AsyncLLM) -> RequestOutput:
        bad = params(0, max_tokens=20, extra_args={"way": way, "at_token": at_token})
        return [output async for output in engine.generate([7, 8, 9], bad, "guilty")][-1]

    async def main(engine: AsyncLLM) -> None:
        expected = await asyncio.gather(*(collect(engine, i) for i in range(1, 6)))
        *others, last = await asyncio.wait_for(
            asyncio.gather(*(collect(engine, i) for i in range(1, 6)), poisonous(engine)),
            TIMEOUT_S,
        )
        assert last.outputs[0].finish_reason == "error"
        assert "guilty" in (last.error or "")
        # On a busy machine the exit status may be lost; the death then looks like an external kill.
        assert re.search(rf"died {'[23]' if way == 'exit' else '5'} times", last.error or "")
        assert others == expected
        # a SIGKILL may be external, so it needs more probes
        assert engine._client.status().restarts <= (3 if way == "exit" else 9)
        assert (await collect(engine, 1)) == expected[0]

    with running(llama, plugins=[str(plugin)]) as engine:
        asyncio.run(main(engine))


@pytest.mark.slow
def test_deaths_by_suspects_do_not_exhaust_the_restart_budget(llama: str, tmp_path: Path) -> None:
    plugin = tmp_path / "poison.py"
    plugin.write_text(POISON)

    async def poisonous(engine: AsyncLLM, i: int) -> str | None:
        bad = params(0, max_tokens=20, extra_args={"way": "exit", "at_token": 2 + i})
        return [output async for output in engine.generate([7, 8, i], bad, f"guilty-{i}")][-1].error

    async def main(engine: AsyncLLM) -> None:
        expected = await asyncio.gather(*(collect(engine, i) for i in range(1, 4)))
        *others, one, two, three = await asyncio.gather(
            *(collect(engine, i) for i in range(1, 4)), *(poisonous(engine, i) for i in range(3))
        )
        for i, error in enumerate((one, two, three)):
            assert f"guilty-{i}" in (error or "")
        assert others == expected

    with running(llama, plugins=[str(plugin)], max_restarts=1) as engine:
        asyncio.run(main(engine))


@pytest.mark.slow
def test_frozen_engine_is_killed_and_restarted(llama: str) -> None:
    async def main(engine: AsyncLLM) -> None:
        expected = await collect(engine, 3)
        task = asyncio.ensure_future(collect(engine, 3))
        await until(lambda: engine.health()["running"] > 0)
        os.kill(engine._client.child.pid, signal.SIGSTOP)
        await until(lambda: engine.state() == "stalled")
        assert "no sign of life" in engine.health()["reason"]
        await until(lambda: engine.state() == "restarting")
        assert await asyncio.wait_for(task, TIMEOUT_S) == expected
        await until(lambda: engine.state() == "ready")
        os.kill(engine._client.child.pid, signal.SIGSTOP)
        await until(lambda: engine.state() == "stalled")
        os.kill(engine._client.child.pid, signal.SIGCONT)
        await until(lambda: engine.state() == "ready")
        assert engine.health()["restarts"] == 1

    with running(llama, heartbeat_timeout=8.0) as engine:
        asyncio.run(main(engine))


def test_requests_wait_for_a_restart_and_can_be_aborted(llama: str) -> None:
    async def main(engine: AsyncLLM) -> None:
        expected = await collect(engine, 1)
        running_one = asyncio.ensure_future(collect(engine, 5))
        await until(lambda: engine.health()["running"] == 1)
        os.kill(engine._client.child.pid, signal.SIGKILL)
        await until(lambda: engine.state() == "restarting")
        waiting, leaving = (asyncio.ensure_future(collect(engine, i)) for i in (1, 3))
        await asyncio.sleep(0.1)
        leaving.cancel()
        running_one.cancel()
        await until(lambda: engine.health()["running"] == 0)
        assert await asyncio.wait_for(waiting, TIMEOUT_S) == expected
        assert await engine.reset_prefix_cache()
        assert len(engine._client._requests) == 0
        assert len(engine._client._calls) == 0
        assert len(engine._streams.outputs) == 0

    with running(llama) as engine:
        asyncio.run(main(engine))


STAGES = [
    ("loading the plugins", "engine_process_start", "process", "None", 'process == "engine"'),
    ("deciding the configuration", "engine_resolve", "decisions", "{}", "CHILD"),
    ("loading the model", "engine_runner_extensions", "config", "[]", "CHILD"),
    ("allocating the KV cache", "engine_scheduler_extensions", "config", "[]", "CHILD"),
]


@pytest.mark.parametrize(("stage", "hook", "arguments", "result", "condition"), STAGES)
def test_start_failure_names_its_stage(
    tmp_path: Path, stage: str, hook: str, arguments: str, result: str, condition: str
) -> None:
    plugin = tmp_path / "dies.py"
    state = "import sys\n\nCHILD = sys.argv[0].endswith('child.py')"
    fields = {
        "state": state,
        "condition": condition,
        "hook": hook,
        "arguments": arguments,
        "result": result,
    }
    plugin.write_text(KILLS_ITSELF.format(**fields))
    with pytest.raises(EngineDead) as caught:
        AsyncLLM("scripted:", plugins=[str(plugin)], max_model_len=64, num_gpu_blocks_override=32)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("process 'engine' (pid ")
    assert lines[1] == f"  stage: {stage}"
    assert lines[2].startswith("  cause: it was killed by SIGKILL")


def test_start_error_of_the_engine_process_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        AsyncLLM("scripted:", max_model_len=4096, num_gpu_blocks_override=4, block_size=4)
    assert "--num-gpu-blocks-override" in str(caught.value)
    assert "stage: allocating the KV cache, in process 'engine'" in str(caught.value)


def test_crash_loop_ends_with_engine_dead(llama: str, tmp_path: Path) -> None:
    async def main(engine: AsyncLLM) -> None:
        task = asyncio.ensure_future(collect(engine, 3))
        await until(lambda: engine.health()["running"] > 0)
        (tmp_path / "now").touch()
        os.kill(engine._client.child.pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="--max-restarts 1"):
            await asyncio.wait_for(task, TIMEOUT_S)
        assert engine.state() == "dead"
        for call in (collect(engine, 1), engine.reset_prefix_cache()):
            with pytest.raises(EngineDead):
                await asyncio.wait_for(call, TIMEOUT_S)

    plugin = tmp_path / "dies.py"
    condition = f"os.path.exists({str(tmp_path / 'now')!r})"
    hook = {"hook": "engine_process_start", "arguments": "process", "result": "None", "state": ""}
    plugin.write_text(KILLS_ITSELF.format(condition=condition, **hook))
    with running(llama, plugins=[str(plugin)], max_restarts=1) as engine:
        asyncio.run(main(engine))


@pytest.mark.slow
def test_stable_uptime_resets_the_crash_counter(
    llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtin_plugins.clients.process.supervised.STABLE_S", 0.0)

    async def main(engine: AsyncLLM) -> None:
        for kills in (1, 2):
            os.kill(engine._client.child.pid, signal.SIGKILL)
            await until(
                lambda kills=kills: (
                    engine._client.status().restarts == kills and engine.state() == "ready"
                )
            )

    with running(llama, max_restarts=1) as engine:
        asyncio.run(main(engine))


ORPHANING = """
import os, sys, time
from core import AsyncLLM
engine = AsyncLLM("scripted:", max_model_len=64, num_gpu_blocks_override=32)
print(engine._client.child.pid, flush=True)
time.sleep(3600)
"""


def test_no_process_outlives_the_server(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", ORPHANING], stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    asyncio.run(until(lambda: not is_alive(child)))
    # processes of the engine that were starting remove theirs once they have started
    asyncio.run(until(lambda: not list(tmp_path.glob("engine-*"))))


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_request_timeout_ends_the_request(llama: str) -> None:
    async def main(engine: AsyncLLM) -> None:
        with pytest.raises(EngineError, match="--request-timeout"):
            async for _ in engine.generate(
                [5], SamplingParams(max_tokens=500, ignore_eos=True), "long"
            ):
                pass
        await until(lambda: engine.health()["running"] == 0)
        assert len(engine._streams.outputs) == 0

    with running(llama, request_timeout=0.02) as engine:
        asyncio.run(main(engine))
