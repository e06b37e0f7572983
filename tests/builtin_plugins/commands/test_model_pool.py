"""Which models are in memory: loads on demand, evictions, bounds, failures; with fake processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.commands.serve.models import pool as pool_module
from builtin_plugins.commands.serve.models.pool import Model, ModelPool, ModelUnavailable
from builtin_plugins.commands.serve.models.process import LoadFailed
from builtin_plugins.commands.serve.models.settings import ModelSettings
from core.api import QueueFull
from tests.timeouts import TIMEOUT_S


class FakeServer:
    """A process that loads when it is let, and notes when it is in memory."""

    def __init__(self, starter: FakeStarter, name: str) -> None:
        self.address: Any = name
        self.is_alive = True
        self._starter = starter

    def follow(self) -> None:
        pass

    def exit_reason(self) -> str:
        return "it was killed"

    async def ready(self) -> None:
        await self._starter.may_load.wait()
        if self.address in self._starter.broken:
            raise LoadFailed("no weights")

    async def stop(self) -> None:
        assert not self._starter.open[self.address], "unloaded with open requests"
        await asyncio.sleep(0)
        self.is_alive = False
        self._starter.in_memory -= 1

    def terminate(self) -> None:
        self.is_alive = False

    def close(self) -> None:
        pass


class FakeStarter:
    """Starts fake processes."""

    def __init__(self, names: Sequence[str], limit: int) -> None:
        self.loads: list[str] = []
        self.broken: set[str] = set()
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.open = dict.fromkeys(names, 0)
        self.in_memory = 0
        self.found: FakeServer | None = None
        self._limit = limit

    def start(self, number: int, settings: ModelSettings) -> Any:
        self.in_memory += 1
        assert self.in_memory <= self._limit
        self.loads.append(settings.name)
        return FakeServer(self, settings.name)

    def preserve(self, settings: ModelSettings, process: Any) -> None:
        pass

    def preserved(self, settings: ModelSettings) -> Any:
        return self.found if settings.name == "a" else None


class World:
    """A pool of fake models."""

    def __init__(
        self, names: str, *, limit: int, queue: int = 100, keep_alive_s: float | None = None
    ) -> None:
        self.starter = FakeStarter(names, limit)
        settings = [ModelSettings((name,), name, {}, keep_alive_s) for name in names]
        self.pool = ModelPool(settings, self.starter, max_loaded=limit, max_queue=queue)
        self.models: dict[str, Model] = {model.name: model for model in self.pool.models}

    async def ask(self, name: str, until: Callable[[], Awaitable[Any]] | None = None) -> str:
        """Make one request; it ends at once, or with `until`."""
        async with self.pool.use(self.models[name]) as opened:
            address: Any = opened
            assert address == name
            self.starter.open[name] += 1
            await (until() if until else asyncio.sleep(0))
            self.starter.open[name] -= 1
            return str(address)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))


async def met(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


Task = asyncio.Task[str]


async def held_by_another(world: World) -> tuple[asyncio.Event, Task, Task, Task]:
    """Let `b` need the room of `a`: return the end of a request of `a`, and three requests.

    They are the open one of `a`, that of `b`, and another one of `a`, which waits.
    """
    done = asyncio.Event()
    first = asyncio.create_task(world.ask("a", done.wait))
    await met(lambda: world.models["a"].num_open == 1)
    other = asyncio.create_task(world.ask("b"))
    await met(lambda: world.models["a"].is_held)
    late = asyncio.create_task(world.ask("a"))
    await met(lambda: len(world.models["a"].waiting) == 1)
    return done, first, other, late


def lru_loads(order: Sequence[str], limit: int) -> int:
    """Return how often an LRU cache of models loads one for requests in this order."""
    loaded: list[str] = []
    loads = 0
    for name in order:
        if name in loaded:
            loaded.remove(name)
        else:
            loads += 1
            loaded = loaded[-(limit - 1) :] if limit > 1 else []
        loaded.append(name)
    return loads


@given(st.text("abcd", max_size=40), st.integers(1, 4))
def test_requests_one_by_one_load_as_an_lru_cache_does(order: str, limit: int) -> None:
    async def test() -> None:
        world = World("abcd", limit=limit)
        for name in order:
            await world.ask(name)
        assert len(world.starter.loads) == lru_loads(order, limit)

    run(test)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), max_size=40), st.data())
def test_concurrent_requests_are_all_answered_within_the_limit(
    order: list[tuple[str, int]], data: st.DataObject
) -> None:
    """A fake process asserts that it is not unloaded with open requests, the starter the limit."""

    async def test() -> None:
        limit = data.draw(st.integers(1, 4))
        world = World("abcd", limit=limit)

        async def ticks(number: int) -> None:
            for _ in range(number):
                await asyncio.sleep(0)

        tasks = []
        for name, number in order:
            tasks.append(asyncio.create_task(world.ask(name, partial(ticks, number))))
            await ticks(data.draw(st.integers(0, 2)))
        answers = await asyncio.gather(*tasks)
        assert answers == [name for name, _ in order]
        loads = Counter(world.starter.loads)
        assert loads <= Counter(answers), "a model is loaded for nothing"

    run(test)


def test_loading_does_not_delay_requests_of_loaded_models() -> None:
    async def test() -> None:
        world = World("ab", limit=2)
        await world.ask("a")
        world.starter.may_load.clear()
        waiting = asyncio.create_task(world.ask("b"))
        await met(lambda: world.models["b"].state == "loading")
        assert [await world.ask("a") for _ in range(5)] == ["a"] * 5
        assert not waiting.done()
        world.starter.may_load.set()
        assert await waiting == "b"

    run(test)


def test_busy_models_get_no_further_requests_while_another_needs_their_room() -> None:
    """A model with steady requests does not starve one that waits for room."""

    async def test() -> None:
        world = World("ab", limit=1)
        done, first, other, late = await held_by_another(world)
        assert world.starter.loads == ["a"]
        done.set()
        assert list(await asyncio.gather(first, other, late)) == ["a", "b", "a"]
        assert world.starter.loads == ["a", "b", "a"]

    run(test)


def test_a_held_model_serves_again_when_the_waiting_request_is_gone() -> None:
    async def test() -> None:
        world = World("ab", limit=1)
        done, first, other, late = await held_by_another(world)
        other.cancel()
        assert await late == "a"
        done.set()
        await first
        assert world.starter.loads == ["a"]

    run(test)


def test_an_idle_model_is_unloaded_before_a_busy_older_one() -> None:
    async def test() -> None:
        world = World("abc", limit=2)
        done = asyncio.Event()
        busy = asyncio.create_task(world.ask("a", done.wait))
        await met(lambda: world.models["a"].num_open == 1)
        await world.ask("b")
        assert await world.ask("c") == "c"
        assert world.models["a"].state == "loaded"
        done.set()
        await busy

    run(test)


def test_the_queue_for_models_is_bounded() -> None:
    async def test() -> None:
        world = World("ab", limit=1, queue=2)
        world.starter.may_load.clear()
        waiting = [asyncio.create_task(world.ask(name)) for name in "ab"]
        await met(lambda: all(model.waiting for model in world.pool.models))
        with pytest.raises(QueueFull, match="--max-model-queue"):
            await world.ask("a")
        world.starter.may_load.set()
        assert await asyncio.gather(*waiting) == ["a", "b"]

    run(test)


def test_a_model_that_fails_to_load_fails_its_requests_and_is_tried_again() -> None:
    async def test() -> None:
        world = World("ab", limit=2)
        world.starter.broken.add("a")
        answers = await asyncio.gather(*(world.ask(name) for name in "aba"), return_exceptions=True)
        assert [str(each) for each in answers] == [
            "the model 'a' cannot be loaded: no weights",
            "b",
            "the model 'a' cannot be loaded: no weights",
        ]
        with pytest.raises(ModelUnavailable) as caught:  # without another try
            await world.ask("a")
        assert 1 <= caught.value.retry_after_s <= pool_module.FIRST_RETRY_S
        assert world.starter.loads.count("a") == 1
        world.starter.broken.clear()
        world.models["a"].retry_at_s = 0.0
        assert await world.ask("a") == "a"

    run(test)


def test_a_failing_load_does_not_cost_another_model_its_place() -> None:
    async def test() -> None:
        world = World("ab", limit=1)
        world.starter.broken.add("b")
        await world.ask("a")
        for _ in range(2):  # the first load, and its retry
            with pytest.raises(ModelUnavailable):
                await world.ask("b")
            await met(lambda: world.models["a"].state == "loaded")
            world.models["b"].retry_at_s = 0.0
        assert world.starter.loads == ["a", "b", "a", "b", "a"]
        assert await world.ask("a") == "a"
        world.starter.broken.clear()
        assert await world.ask("b") == "b"
        assert world.starter.loads[5:] == ["b"]

    run(test)


def test_a_failing_load_restores_no_model_that_was_idle_too_long() -> None:
    async def test() -> None:
        world = World("ab", limit=1, keep_alive_s=0.0)
        world.starter.broken.add("b")
        await world.ask("a")
        with pytest.raises(ModelUnavailable):
            await world.ask("b")
        assert world.models["a"].state == "unloaded"
        assert world.starter.loads == ["a", "b"]

    run(test)


def test_idle_and_ended_models_are_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "WATCH_S", 0.001)

    async def test() -> None:
        world = World("ab", limit=2, keep_alive_s=0.0)
        await world.pool.started()
        await world.ask("a")
        await met(lambda: world.models["a"].state == "unloaded")
        forever = World("ab", limit=2)
        await forever.pool.started()
        await forever.ask("a")
        server: Any = forever.models["a"].server
        server.is_alive = False
        await met(lambda: forever.models["a"].state == "unloaded")
        assert forever.models["a"].reason == "it was killed"
        assert await forever.ask("a") == "a"

    run(test)


def test_a_client_that_leaves_as_its_model_is_loaded_leaves_no_open_request() -> None:
    async def test() -> None:
        world = World("a", limit=1)
        world.starter.may_load.clear()
        waiting = asyncio.create_task(world.ask("a"))
        await met(lambda: bool(world.models["a"].waiting))
        waiter = world.models["a"].waiting[0]
        waiter.add_done_callback(lambda _: waiting.cancel())
        world.starter.may_load.set()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert world.models["a"].num_open == 0

    run(test)


def test_models_of_the_previous_api_process_go_on() -> None:
    async def test() -> None:
        world = World("ab", limit=2)
        world.starter.found = FakeServer(world.starter, "a")
        await world.pool.started()
        assert await world.ask("a") == "a"
        assert world.starter.loads == []

    run(test)


def test_calls_of_operators_reach_held_models_and_are_no_use_of_them() -> None:
    async def test() -> None:
        world = World("a", limit=1)
        await world.ask("a")
        model = world.models["a"]
        used_at_s = (model.requested_at_s, model.used_at_s)
        model.is_held = True
        with world.pool.visit(model) as opened:
            address: Any = opened
            assert address == "a"
            assert not world.pool.unload(model)
        assert (model.requested_at_s, model.used_at_s) == used_at_s
        assert world.pool.unload(model)
        await met(lambda: model.state == "unloaded")

    run(test)
