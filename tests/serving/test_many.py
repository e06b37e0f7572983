"""Several pieces of work as one."""

from __future__ import annotations

import asyncio

import pytest

from builtin_plugins.routes.many import gathered


class Work:
    """Pieces that count how many are under way."""

    def __init__(self) -> None:
        self.now = self.most = self.begun = 0

    async def piece(self, number: int, *, bad: bool = False) -> int:
        self.begun += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(number % 5):
                await asyncio.sleep(0)
            if bad:
                raise ValueError(f"piece {number} is bad")
            return number
        finally:
            self.now -= 1


@pytest.mark.parametrize(("most", "seen"), [(None, 20), (3, 3), (1, 1)])
def test_results_are_in_order_however_many_are_under_way(most: int | None, seen: int) -> None:
    work = Work()
    assert asyncio.run(gathered((work.piece(number) for number in range(20)), most)) == list(
        range(20)
    )
    assert work.most <= seen


def test_one_that_fails_ends_the_others_and_no_more_begin() -> None:
    work = Work()
    with pytest.raises(ValueError, match="piece 4 is bad"):
        asyncio.run(gathered((work.piece(number, bad=number == 4) for number in range(50)), 4))
    assert work.now == 0
    assert work.begun < 20


def test_nothing_is_nothing() -> None:
    assert asyncio.run(gathered(iter(()))) == []
