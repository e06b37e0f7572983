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
from builtin_plugins.routes.api import variant_sources
from core import AsyncLLM
from core.api import InvalidRequest
from core.api.execution import CallAnswer
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.clients.data_parallel.engines import child, running, states
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


@pytest.fixture(scope="module")
def engines(folder: Path) -> Iterator[AsyncLLM]:
    events = {"enable_kv_cache_events": True, "endpoint": f"ipc://{folder}/events"}
    profiler = {"torch_profiler_dir": str(folder / "profiles"), "torch_profiler_with_stack": False}
    with running(
        str(folder / "model"),
        plugins=["+playground"],
        enable_lora=True,
        max_lora_rank=8,
        max_loras=2,
        enable_operator_routes=True,
        enable_sleep_mode=True,
        profiler_config=profiler,
        kv_events_config=events,
    ) as engines:
        yield engines


@pytest.fixture(scope="module")
def payloads(engines: AsyncLLM, folder: Path) -> dict[str, bytes]:
    """Return the payload of each call that has one; both engines have loaded the adapters."""
    (source,) = variant_sources(engines.registry)

    async def load() -> list[bytes]:
        for name in ADAPTERS:
            await source.load(engines.call, name, str(folder / name), None, again=False)
        known = source._adapters.known  # type: ignore[attr-defined]
        return [msgspec.msgpack.encode(known[name].ref) for name in ADAPTERS]

    one, other = asyncio.run(asyncio.wait_for(load(), TIMEOUT_S))
    return {**PAYLOADS, "lora.load": one, "lora.pin": one, "lora.unload": other}


async def all_calls(engines: AsyncLLM, payloads: dict[str, bytes]) -> list[list[CallAnswer]]:
    """Make all calls in order, without waiting for one before the next."""
    return await asyncio.wait_for(
        asyncio.gather(*(engines.call(name, payloads.get(name, b"")) for name in ORDER)), TIMEOUT_S
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
def test_calls_are_done_by_both_engines(engines: AsyncLLM, payloads: dict[str, bytes]) -> None:
    async def main() -> None:
        answers = await all_calls(engines, payloads)
        assert errors_of(answers, 0) == errors_of(answers, 1) == {}
        files = [msgspec.json.decode(each.ranks[0])["file"] for each in answers[-1]]
        assert [Path(file).name.split(".")[:2] for file in files] == [
            ["engine0", "rank0"],
            ["engine1", "rank0"],
        ]

    asyncio.run(main())


@pytest.mark.slow
def test_calls_are_not_done_by_an_engine_that_dies_meanwhile(
    engines: AsyncLLM, payloads: dict[str, bytes]
) -> None:
    async def main() -> None:
        os.kill(child(engines, 0).pid, signal.SIGSTOP)
        calls = asyncio.ensure_future(all_calls(engines, payloads))
        supervised = engines._client.engines[0].supervised
        await until(lambda: len(supervised._calls) == len(ORDER))
        os.kill(child(engines, 0).pid, signal.SIGKILL)
        answers = await calls
        assert errors_of(answers, 1) == {}
        found = errors_of(answers, 0)
        assert set(found) == set(ORDER)
        assert all(DIED in error for error in found.values())
        await until(lambda: states(engines) == ["ready"] * 2)

    asyncio.run(main())


@pytest.mark.slow
def test_calls_wait_for_an_engine_that_restarts(
    engines: AsyncLLM, payloads: dict[str, bytes]
) -> None:
    async def main() -> None:
        supervised = engines._client.engines[0].supervised
        may_restart = threading.Event()
        pause = supervised._pause
        supervised._pause = may_restart.wait
        os.kill(child(engines, 0).pid, signal.SIGKILL)
        await until(lambda: states(engines)[0] == "restarting")
        calls = asyncio.ensure_future(all_calls(engines, payloads))
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
def test_calls_that_only_read_do_not_wait_for_an_engine_that_restarts(engines: AsyncLLM) -> None:
    async def main() -> None:
        supervised = engines._client.engines[0].supervised
        may_restart = threading.Event()
        pause = supervised._pause
        supervised._pause = may_restart.wait
        os.kill(child(engines, 0).pid, signal.SIGKILL)
        await until(lambda: states(engines)[0] == "restarting")
        reading_calls(engines.registry).add("memory.owners")
        restarting, ready = await asyncio.wait_for(engines.call("memory.owners"), TIMEOUT_S)
        assert (restarting.error, restarting.died) == ("it is restarting", False)
        assert has_done(ready)
        supervised._pause = pause
        may_restart.set()
        await until(lambda: states(engines) == ["ready"] * 2)
        assert all(has_done(each) for each in await engines.call("memory.owners"))
        reading_calls(engines.registry).clear()

    asyncio.run(main())


@pytest.mark.slow
def test_unknown_call_is_refused(engines: AsyncLLM) -> None:
    with pytest.raises(InvalidRequest, match=r"no feature that is on answers the call 'lora\.eat'"):
        asyncio.run(engines.call("lora.eat"))
