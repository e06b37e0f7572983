"""Every call of a feature with two engines: each answer names the engine that has done it."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import os
import re
import signal
import textwrap
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from builtin_plugins.clients.api import reading_calls
from builtin_plugins.clients.data_parallel.client import DataParallelClient
from builtin_plugins.routes.api import variant_sources
from core import AsyncLLM
from core.api import InvalidRequest
from core.api.execution import CallAnswer
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.clients.data_parallel.engines import (
    brokered,
    client_of,
    running,
)
from tests.builtin_plugins.clients.streams import until
from tests.builtin_plugins.features.lora.adapter_writer import make_adapter
from tests.timeouts import TIMEOUT_S

ROOT: Final = Path(__file__).parents[4]
ORDER: Final = (
    "reset_prefix_cache",
    "memory.owners",
    "explain.request",
    "playground.blocks",
    "kv_events.chain",
    "lora.load",
    "lora.list",
    "lora.pin",
    "lora.unload",
    "pausing.pause",
    "pausing.state",
    "pausing.drain",
    "pausing.resume",
    "sleeping.idle",
    "sleeping.sleep",
    "sleeping.state",
    "sleeping.wake",
    "sleeping.release",
    "sleeping.wake",
    "profiling.start",
    "profiling.stop",
    "weights.identity",
)
"""All calls, in an order in which each is possible."""
NOT_TRIED: Final = {"multimodal.counters": "reads counters; it needs a model with a vision tower"}
PAYLOADS: Final = {"sleeping.sleep": b"1", "explain.request": b"unknown"}
ADAPTERS: Final = ("one", "other")
DIED: Final = "the engine died before it answered"


def calls_of(owner: type[Any]) -> set[str]:
    """Return the calls that an extension's method compares its verb with."""
    method = ast.parse(textwrap.dedent(inspect.getsource(owner.call))).body[0]
    assert isinstance(method, ast.FunctionDef)
    verb = method.args.args[1].arg
    verbs = {
        constant.value
        for compared in ast.walk(method)
        if isinstance(compared, ast.Compare) and ast.unparse(compared.left) == verb
        for constant in ast.walk(compared)
        if isinstance(constant, ast.Constant)
    }
    return {f"{owner.name}.{each}" for each in verbs}


def calls_of_features() -> set[str]:
    """Return the calls of all builtin extensions of schedulers and workers."""
    found: set[str] = set()
    for path in (ROOT / "builtin_plugins").rglob("*.py"):
        if not re.search(r"def call\(self, \w+: str, data: bytes\) -> bytes", path.read_text()):
            continue
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for owner in vars(module).values():
            is_own = isinstance(owner, type) and owner.__module__ == module.__name__
            if is_own and isinstance(getattr(owner, "name", None), str) and hasattr(owner, "call"):
                found |= calls_of(owner)
    return found


def test_every_call_of_a_feature_is_tried_with_two_engines() -> None:
    assert calls_of_features() == {*ORDER, *NOT_TRIED} - {"reset_prefix_cache"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model and two adapters."""
    folder = tmp_path_factory.mktemp("calls")
    model = make_checkpoint("LlamaForCausalLM", folder / "model")
    for rank, name in enumerate(ADAPTERS, 1):
        make_adapter(model, folder / name, rank)
    return folder


class Engines:
    """Two engines, and where calls are made."""

    def __init__(self, client: Any, servers: Sequence[AsyncLLM]) -> None:
        self._client: DataParallelClient = client
        self.servers = servers
        self.llm = servers[-1]

    def supervised(self, rank: int) -> Any:
        return self._client.engines[rank].supervised

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.supervised(rank).child.pid, number)

    def states(self) -> list[str]:
        """Return the states at the client itself; API servers hear of them later."""
        return [each.supervised.status().state for each in self._client.engines]


@pytest.fixture(scope="module", params=["one API process", "two API servers"])
def engines(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Engines]:
    own = tmp_path_factory.mktemp("engines")
    events = {"enable_kv_cache_events": True, "endpoint": f"ipc://{own}/events"}
    profiler = {"torch_profiler_dir": str(own / "profiles"), "torch_profiler_with_stack": False}
    settings: dict[str, Any] = {
        "plugins": ["+playground"],
        "enable_lora": True,
        "max_lora_rank": 8,
        "max_loras": 2,
        "enable_operator_routes": True,
        "enable_sleep_mode": True,
        "profiler_config": profiler,
        "kv_events_config": events,
    }
    model = str(folder / "model")
    if request.param == "one API process":
        with running(model, **settings) as llm:
            yield Engines(client_of(llm), [llm])
    else:
        with brokered(model, **settings) as (broker, servers):
            yield Engines(broker._client, servers)


@pytest.fixture(scope="module")
def payloads(engines: Engines, folder: Path) -> dict[str, bytes]:
    """Return the payload of each call that has one; both engines have loaded the adapters."""
    (source,) = variant_sources(engines.llm.registry)

    async def load() -> list[bytes]:
        for name in ADAPTERS:
            await source.load(engines.llm.call, name, str(folder / name), None, again=False)
        known = source._adapters.known  # type: ignore[attr-defined]
        return [msgspec.msgpack.encode(known[name].ref) for name in ADAPTERS]

    one, other = asyncio.run(asyncio.wait_for(load(), TIMEOUT_S))
    return {**PAYLOADS, "lora.load": one, "lora.pin": one, "lora.unload": other}


async def all_calls(llm: AsyncLLM, payloads: dict[str, bytes]) -> list[list[CallAnswer]]:
    """Make all calls in order, without waiting for one before the next."""
    return await asyncio.wait_for(
        asyncio.gather(*(llm.call(name, payloads.get(name, b"")) for name in ORDER)), TIMEOUT_S
    )


def has_done(answer: CallAnswer) -> bool:
    """Return whether an engine has done a call; it has an answer, or an error."""
    assert bool(answer.all) != bool(answer.error), answer
    assert not (answer.died and answer.all)
    return bool(answer.all)


def errors_of(answers: Sequence[list[CallAnswer]], rank: int) -> dict[str, str]:
    """Return the errors of an engine, by call."""
    assert all([each.engine for each in found] == [0, 1] for found in answers)
    return {
        name: found[rank].error
        for name, found in zip(ORDER, answers, strict=True)
        if not has_done(found[rank])
    }


@pytest.mark.slow
def test_calls_are_done_by_both_engines(engines: Engines, payloads: dict[str, bytes]) -> None:
    async def main() -> None:
        for llm in engines.servers:
            answers = await all_calls(llm, payloads)
            assert errors_of(answers, 0) == errors_of(answers, 1) == {}
        files = [
            msgspec.json.decode(each.ranks[0])["file"]
            for each in answers[ORDER.index("profiling.stop")]
        ]
        assert [Path(file).name.split(".")[:2] for file in files] == [
            ["engine0", "rank0"],
            ["engine1", "rank0"],
        ]

    asyncio.run(main())


@pytest.mark.slow
def test_calls_are_not_done_by_an_engine_that_dies_meanwhile(
    engines: Engines, payloads: dict[str, bytes]
) -> None:
    async def main() -> None:
        engines.kill(0, signal.SIGSTOP)
        calls = asyncio.ensure_future(all_calls(engines.llm, payloads))
        supervised = engines.supervised(0)
        await until(lambda: len(supervised._calls) == len(ORDER))
        engines.kill(0)
        answers = await calls
        assert errors_of(answers, 1) == {}
        found = errors_of(answers, 0)
        assert set(found) == set(ORDER)
        assert all(DIED in error for error in found.values())
        await until(lambda: engines.states() == ["ready"] * 2)

    asyncio.run(main())


@pytest.mark.slow
def test_calls_wait_for_an_engine_that_restarts(
    engines: Engines, payloads: dict[str, bytes]
) -> None:
    async def main() -> None:
        supervised = engines.supervised(0)
        may_restart = threading.Event()
        pause = supervised._pause
        supervised._pause = may_restart.wait
        engines.kill(0)
        await until(lambda: engines.states()[0] == "restarting")
        calls = asyncio.ensure_future(all_calls(engines.llm, payloads))
        await until(lambda: len(supervised._calls._waiting) == len(ORDER))
        assert not calls.done()
        supervised._pause = pause
        may_restart.set()
        answers = await calls
        assert errors_of(answers, 1) == {}
        # The new process has read no adapter yet.
        found = errors_of(answers, 0)
        assert list(found) == ["lora.pin"]
        assert "cannot be pinned" in found["lora.pin"]

    asyncio.run(main())


@pytest.mark.slow
def test_calls_that_only_read_do_not_wait_for_an_engine_that_restarts(engines: Engines) -> None:
    async def main() -> None:
        supervised = engines.supervised(0)
        may_restart = threading.Event()
        pause = supervised._pause
        supervised._pause = may_restart.wait
        engines.kill(0)
        await until(lambda: engines.states()[0] == "restarting")
        reading_calls(engines.llm.registry).add("memory.owners")
        restarting, ready = await asyncio.wait_for(engines.llm.call("memory.owners"), TIMEOUT_S)
        assert (restarting.error, restarting.died) == ("it is restarting", False)
        assert has_done(ready)
        supervised._pause = pause
        may_restart.set()
        await until(lambda: engines.states() == ["ready"] * 2)
        assert all(has_done(each) for each in await engines.llm.call("memory.owners"))
        reading_calls(engines.llm.registry).clear()

    asyncio.run(main())


@pytest.mark.slow
def test_unknown_call_is_refused(engines: Engines) -> None:
    with pytest.raises(InvalidRequest, match=r"no feature that is on answers the call 'lora\.eat'"):
        asyncio.run(engines.llm.call("lora.eat"))
