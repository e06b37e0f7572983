"""`gather_bounded`: order, bound, failure and cancellation."""

from __future__ import annotations

import asyncio

import pytest

from builtin_plugins.routes.common.concurrency import gather_bounded


class Work:
    """Coroutines that count how many run at once."""

    def __init__(self) -> None:
        self.now = self.limit = self.begun = 0

    async def piece(self, number: int, *, bad: bool = False) -> int:
        self.begun += 1
        self.now += 1
        self.limit = max(self.limit, self.now)
        try:
            for _ in range(number % 5):
                await asyncio.sleep(0)
            if bad:
                raise ValueError(f"piece {number} is bad")
            return number
        finally:
            self.now -= 1


@pytest.mark.parametrize(("limit", "seen"), [(None, 20), (3, 3), (1, 1)])
def test_gather_returns_results_in_order(limit: int | None, seen: int) -> None:
    work = Work()
    assert asyncio.run(gather_bounded((work.piece(number) for number in range(20)), limit)) == list(
        range(20)
    )
    assert work.limit <= seen


def test_gather_failure_cancels_the_rest() -> None:
    work = Work()
    with pytest.raises(ValueError, match="piece 4 is bad"):
        asyncio.run(
            gather_bounded((work.piece(number, bad=number == 4) for number in range(50)), 4)
        )
    assert work.now == 0
    assert work.begun < 20


def test_gather_of_no_work_returns_empty_list() -> None:
    assert asyncio.run(gather_bounded(iter(()))) == []
