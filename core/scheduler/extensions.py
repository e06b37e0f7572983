"""Scheduler extensions, flattened once into tuples of bound methods: what is absent costs an empty
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from core.contracts.scheduling import MayStart, RunningRows
from core.deprecated import by_request
from core.errors import EngineError, PluginError, make_all
from core.kv.manager import Load
from core.scheduler.columns import Ints
from core.step import StepPlan

Methods = tuple[tuple[str, Callable[..., Any]], ...]
"""(extension name, bound method) of those that have the method, in the order given."""


class Extensions:
    """The optional methods of all extensions.

    Whatever plugin code raises leaves as `PluginError` naming it.
    """

    def __init__(self, extensions: Sequence[Any]) -> None:
        def methods(name: str) -> Methods:
            return tuple((e.name, getattr(e, name)) for e in extensions if hasattr(e, name))

        self._attach = methods("attach")
        self._arrived = methods("arrived")
        self._may_start = methods("may_start")
        self._reserved = methods("reserved")
        self._cached = methods("cached_tokens")
        self._load = methods("load")
        self._guesses = methods("guesses") + tuple(
            (name, by_request(m)) for name, m in methods("extra_tokens")
        )
        self._limits = methods("limits")
        self._planned = methods("planned")
        self._pending = methods("pending")
        self._ended = methods("finished")
        self._result = dict(methods("result"))
        self._calls = dict(methods("call"))
        self._close = methods("close")

        def steering(*names: str) -> tuple[Callable[[], bool], ...]:
            return tuple(
                getattr(e, "steers", lambda: True)
                for e in extensions
                if any(hasattr(e, name) for name in names)
            )

        self._limiting = steering("limits")
        self._guessing = steering("guesses", "extra_tokens")

    @property
    def limiting(self) -> bool:
        """Say whether any of them is to be asked in this step how few tokens rows compute."""
        return bool(self._limiting) and any(
            steers() for steers in self._limiting
        )  # mostly there is none

    @property
    def guessing(self) -> bool:
        """Say whether any of them is to be asked in this step how many guesses rows compute."""
        return bool(self._guessing) and any(steers() for steers in self._guessing)

    def arrived(self, request: Any) -> None:
        """Show everyone a request that is about to be queued."""
        _all(self._arrived, request)

    def may_start(self, request: Any) -> MayStart:
        """Ask every extension, so that each begins what the request waits for; START if all agree."""
        if not self._may_start:
            return MayStart.START
        answers = _all(self._may_start, request)
        return MayStart.RESERVE if MayStart.RESERVE in answers else MayStart(all(answers))

    def reserved(self, request: Any, tables: Sequence[Sequence[int]], num_local: int) -> None:
        """Show everyone the blocks that a request was parked with."""
        _all(self._reserved, request, tables, num_local)

    def cached_tokens(self, request: Any, num_local: int) -> int:
        """Return tokens available elsewhere beyond `num_local`: the most any extension offers."""
        return max([0, *map(int, _all(self._cached, request, num_local))])

    def load(self, request: Any, loads: Sequence[Load]) -> bool:
        """Have blocks filled that were taken for what tiers hold; False: the request waits for it."""
        return all(_all(self._load, request, loads))

    def guesses(self, rows: RunningRows) -> Ints | None:
        """Return the guesses that are wanted behind each row's known token; None where there are
        none.
        """
        wanted = None
        for name, method in self._guesses:
            answer = _blamed(name, method, rows)
            if answer is not None:
                counts = np.asarray(answer, dtype=np.int64)
                if counts.shape != rows.rows.shape:
                    raise PluginError(
                        f"scheduler extension {name!r} guesses for {counts.shape} rows of "
                        f"{len(rows.rows)}."
                    )
                wanted = np.maximum(counts, 0 if wanted is None else wanted)
        return wanted

    def limits(self, rows: RunningRows) -> dict[int, int]:
        """Return the most tokens that a row may compute in this step, for those that are limited;
        0: it sits out.
        """
        most: dict[int, int] = {}
        for name, method in self._limits:
            for row, count in (_blamed(name, method, rows) or {}).items():
                most[row] = min(count, most.get(row, count))
        return most

    def attach(self, scheduler: Any) -> None:
        """Give every extension the scheduler to call."""
        _all(self._attach, scheduler)

    def close(self) -> None:
        """Tell everyone that nothing is called any more, then raise the first error of those that
        fail.
        """
        make_all(partial(_blamed, name, method) for name, method in self._close)

    def pending(self) -> bool:
        """Say whether any has something for its worker half although nobody may compute."""
        return any(_blamed(name, method) for name, method in self._pending)

    def planned(self, plan: StepPlan) -> None:
        """Show the plan to everyone and put the payloads into it."""
        for name, method in self._planned:
            payload = _blamed(name, method, plan)
            if payload is not None:
                plan.payloads[name] = payload

    def finished(self, request: Any) -> int:
        """Return how many extensions keep the request's blocks."""
        return sum(map(bool, _all(self._ended, request)))

    def result(self, payloads: Mapping[str, Sequence[bytes]]) -> None:
        """Give each extension what its worker halves returned, one after the other."""
        for name, of_ranks in payloads.items():
            if (method := self._result.get(name)) is not None:
                for payload in of_ranks:
                    _blamed(name, method, payload)

    def call(self, name: str, verb: str, data: bytes) -> bytes | None:
        """Make a call of the extension called `name`; None where it has nothing to say.

        What it refuses is raised.
        """
        method = self._calls.get(name)
        try:
            return None if method is None else method(verb, data)
        except EngineError:
            raise
        except Exception as error:
            raise PluginError(
                f"scheduler extension {name!r} failed in call {verb!r}: {error!r}"
            ) from error


def _all(methods: Methods, *arguments: Any) -> list[Any]:
    return [_blamed(name, method, *arguments) for name, method in methods]


def _blamed(name: str, method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except PluginError:
        raise  # it names the plugin
    except Exception as error:
        raise PluginError(
            f"scheduler extension {name!r} failed in {method.__name__}: {type(error).__name__}: "
            f"{error}",
            name,
            error,
        ) from error
