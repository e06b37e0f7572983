"""Threads are shared fairly among clients; abandoned jobs never start."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.frontend.fair_semaphore import FairSemaphore
from core.frontend.text.tokenize_queue import FairThreadPool, PromptReader
from tests.timeouts import TIMEOUT_S


class Work:
    """Jobs that block until released, and record their order."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.started: list[str] = []
        self.abandoned: list[str] = []

    def of(self, name: str) -> Callable[[Callable[[], bool]], str]:
        def work(stopped: Callable[[], bool]) -> str:
            self.started.append(name)
            self.go.acquire()
            if stopped():
                self.abandoned.append(name)
            return name

        return work


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not true():
            await asyncio.sleep(0.001)


def test_client_with_many_jobs_does_not_delay_others() -> None:
    async def main() -> None:
        pool = FairThreadPool("test", 1)
        work = Work()
        many = [asyncio.create_task(pool.run(work.of(f"many-{i}"), "many")) for i in range(20)]
        await until(lambda: pool._slots.num_waiting == 19)
        few = [asyncio.create_task(pool.run(work.of(name), name)) for name in ("one", "two")]
        await until(lambda: pool._slots.num_waiting == 21)
        for _ in range(22):
            work.go.release()
        assert await asyncio.gather(*few, *many) == [
            "one",
            "two",
            *(f"many-{i}" for i in range(20)),
        ]
        assert work.started[:5] == ["many-0", "many-1", "one", "two", "many-2"]

    asyncio.run(main())


def test_number_of_running_jobs_is_limited() -> None:
    async def main() -> None:
        pool = FairThreadPool("test", 3)
        work = Work()
        tasks = [asyncio.create_task(pool.run(work.of(str(i)))) for i in range(10)]
        await until(lambda: len(work.started) == 3 and pool._slots.num_waiting == 7)
        for _ in range(10):
            work.go.release()
        await asyncio.gather(*tasks)
        assert pool._slots.num_waiting == 0

    asyncio.run(main())


def test_cancelled_job_never_starts_or_sees_stopped() -> None:
    async def main() -> None:
        pool = FairThreadPool("test", 1)
        work = Work()
        tasks = [asyncio.create_task(pool.run(work.of(str(i)), "a")) for i in range(5)]
        await until(lambda: work.started == ["0"] and pool._slots.num_waiting == 4)
        for task in tasks[:4]:
            task.cancel()
        await asyncio.gather(*tasks[:4], return_exceptions=True)
        assert pool._slots.num_waiting == 1
        work.go.release()
        await until(lambda: work.started == ["0", "4"])
        assert work.abandoned == ["0"]
        work.go.release()
        assert await tasks[4] == "4"

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(20))
def test_cancellation_never_leaks_a_slot(seed: int) -> None:
    """A client that leaves as it gets a slot passes the slot on."""

    async def main() -> None:
        pool = FairThreadPool("test", 2)
        tasks = [asyncio.create_task(pool.run(lambda stopped: None, str(i % 3))) for i in range(40)]
        for i, task in enumerate(tasks):
            if (i * 7 + seed) % 3 == 0:
                for _ in range((i + seed) % 4):
                    await asyncio.sleep(0)
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(TIMEOUT_S):
            assert (
                await asyncio.gather(*(pool.run(lambda stopped: 1) for _ in range(10))) == [1] * 10
            )
        await until(lambda: pool._slots._free == 2)

    asyncio.run(main())


def test_job_that_outlives_its_event_loop_returns_its_thread() -> None:
    """Programs without a server call `asyncio.run` once per request."""
    pool = FairThreadPool("test", 1)
    work = Work()

    async def leave() -> None:
        task = asyncio.create_task(pool.run(work.of("first")))
        await until(lambda: work.started == ["first"])
        task.cancel()

    asyncio.run(leave())
    work.go.release()
    for i in range(3):
        assert asyncio.run(asyncio.wait_for(pool.run(lambda stopped, i=i: i), TIMEOUT_S)) == i


def test_waiters_of_a_closed_event_loop_hold_no_slot() -> None:
    slots = FairSemaphore(1)

    async def take() -> None:
        await slots.acquire()

    asyncio.run(take())
    closed = asyncio.new_event_loop()
    waiting = closed.create_task(slots.acquire("left"))
    closed.run_until_complete(asyncio.sleep(0))
    assert slots.num_waiting == 1
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    closed.close()
    slots.release()
    asyncio.run(asyncio.wait_for(take(), TIMEOUT_S))


def test_slots_pass_between_threads_with_event_loops_of_their_own() -> None:
    slots = FairSemaphore(2)
    held = threading.Semaphore(2)

    async def hold(name: str) -> None:
        for i in range(50):
            try:
                async with asyncio.timeout(0 if i % 5 == 0 else TIMEOUT_S), slots.slot(name):
                    assert held.acquire(blocking=False)
                    try:
                        await asyncio.sleep(0)
                    finally:
                        held.release()
            except TimeoutError:
                pass

    async def several(name: str) -> None:
        await asyncio.gather(*(hold(name) for _ in range(4)))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda name: asyncio.run(several(name)), "abcd"))
    assert slots._free == 2
    assert slots.num_waiting == 0


def test_job_exception_is_raised_to_the_caller() -> None:
    def broken(stopped: Callable[[], bool]) -> None:
        raise ValueError("no")

    async def main() -> None:
        pool = FairThreadPool("test", 1)
        for _ in range(3):
            with contextlib.suppress(ValueError):
                await pool.run(broken)
                pytest.fail("it was raised")

    asyncio.run(main())


def test_failed_thread_start_releases_the_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        pool = FairThreadPool("test", 1)
        with monkeypatch.context() as patched:
            patched.setattr(pool._threads, "submit", refuse)
            for _ in range(3):
                with pytest.raises(RuntimeError, match="can't start"):
                    await pool.run(lambda stopped: 1)
        assert await pool.run(lambda stopped: 1) == 1

    asyncio.run(main())


@pytest.mark.parametrize(("num_cores", "num_threads"), [(1, 2), (4, 2), (12, 6), (256, 8)])
def test_prompt_threads_are_bounded_by_the_cores(num_cores: int, num_threads: int) -> None:
    reader = PromptReader(None, 16, num_cores)  # type: ignore[arg-type]
    assert reader.num_threads == num_threads
