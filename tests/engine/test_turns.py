"""Threads are given out in turns among clients, and to nobody who has left."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

import pytest
from patience import PATIENCE_S

from core.text.turns import Turns


class Work:
    """Work that lasts until it is let go, and says in which order it began."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.begun: list[str] = []
        self.left: list[str] = []

    def of(self, name: str) -> Callable[[Callable[[], bool]], str]:
        def work(stopped: Callable[[], bool]) -> str:
            self.begun.append(name)
            self.go.acquire()
            if stopped():
                self.left.append(name)
            return name

        return work


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.001)


def test_who_asks_for_much_waits_for_who_asks_for_little() -> None:
    async def ask() -> None:
        turns = Turns("test", 1)
        work = Work()
        many = [asyncio.create_task(turns.run(work.of(f"many-{i}"), "many")) for i in range(20)]
        await until(lambda: turns.num_waiting == 19)
        few = [asyncio.create_task(turns.run(work.of(name), name)) for name in ("one", "two")]
        await until(lambda: turns.num_waiting == 21)
        for _ in range(22):
            work.go.release()
        assert await asyncio.gather(*few, *many) == [
            "one",
            "two",
            *(f"many-{i}" for i in range(20)),
        ]
        assert work.begun[:5] == ["many-0", "many-1", "one", "two", "many-2"]

    asyncio.run(ask())


def test_so_many_run_at_once_and_no_more() -> None:
    async def ask() -> None:
        turns = Turns("test", 3)
        work = Work()
        asked = [asyncio.create_task(turns.run(work.of(str(i)))) for i in range(10)]
        await until(lambda: len(work.begun) == 3 and turns.num_waiting == 7)
        for _ in range(10):
            work.go.release()
        await asyncio.gather(*asked)
        assert turns.num_waiting == 0

    asyncio.run(ask())


def test_what_nobody_waits_for_never_starts_and_is_told_where_it_has() -> None:
    async def ask() -> None:
        turns = Turns("test", 1)
        work = Work()
        asked = [asyncio.create_task(turns.run(work.of(str(i)), "a")) for i in range(5)]
        await until(lambda: work.begun == ["0"] and turns.num_waiting == 4)
        for task in asked[:4]:
            task.cancel()
        await asyncio.gather(*asked[:4], return_exceptions=True)
        assert turns.num_waiting == 1
        work.go.release()
        await until(lambda: work.begun == ["0", "4"])
        assert work.left == ["0"]
        work.go.release()
        assert await asked[4] == "4"

    asyncio.run(ask())


@pytest.mark.parametrize("seed", range(20))
def test_no_thread_is_lost_whenever_clients_leave(seed: int) -> None:
    """Whoever leaves just as a turn is given passes it on."""

    async def ask() -> None:
        turns = Turns("test", 2)
        asked = [
            asyncio.create_task(turns.run(lambda stopped: None, str(i % 3))) for i in range(40)
        ]
        for i, task in enumerate(asked):
            if (i * 7 + seed) % 3 == 0:
                for _ in range((i + seed) % 4):
                    await asyncio.sleep(0)
                task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        async with asyncio.timeout(PATIENCE_S):
            assert (
                await asyncio.gather(*(turns.run(lambda stopped: 1) for _ in range(10))) == [1] * 10
            )
        await until(lambda: turns._places._free == 2)

    asyncio.run(ask())


def test_what_work_raises_reaches_who_asked() -> None:
    def broken(stopped: Callable[[], bool]) -> None:
        raise ValueError("no")

    async def ask() -> None:
        turns = Turns("test", 1)
        for _ in range(3):
            with contextlib.suppress(ValueError):
                await turns.run(broken)
                pytest.fail("it was raised")

    asyncio.run(ask())


def test_a_thread_that_cannot_be_started_takes_nobody_s_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    async def ask() -> None:
        turns = Turns("test", 1)
        with monkeypatch.context() as patched:
            patched.setattr(turns._threads, "submit", refuse)
            for _ in range(3):
                with pytest.raises(RuntimeError, match="can't start"):
                    await turns.run(lambda stopped: 1)
        assert await turns.run(lambda stopped: 1) == 1

    asyncio.run(ask())
