"""Scheduler extensions as tuples of bound methods: an absent method costs an
empty loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from core.contracts.scheduling import MayStart, RunningRows
from core.errors import EngineError, PluginError, run_all
from core.kv.lease import Load
from core.scheduler.columns import Ints
from core.step import StepPlan

Methods = tuple[tuple[str, Callable[..., Any]], ...]
"""(extension name, bound method) of the extensions that have the method, in
load order.
"""


class Extensions:
    """The optional methods of all extensions.

    Any exception of plugin code is raised as a `PluginError` that names the plugin.
    """

    def __init__(self, extensions: Sequence[Any]) -> None:
        def methods(name: str) -> Methods:
            return tuple((e.name, getattr(e, name)) for e in extensions if hasattr(e, name))

        def with_activity(name: str) -> tuple[tuple[Callable[[], bool], str, Any], ...]:
            active = {e.name: getattr(e, "is_active", lambda: True) for e in extensions}
            return tuple((active[owner], owner, method) for owner, method in methods(name))

        self._attach = methods("attach")
        self._arrived = methods("arrived")
        self._may_start = methods("may_start")
        self._reserved = methods("reserved")
        self._cached = methods("cached_tokens")
        self._load = methods("load")
        self._num_draft_tokens = with_activity("num_draft_tokens")
        self._limits = with_activity("limits")
        self._prefill_chunk = methods("prefill_chunk")
        self._planned = methods("planned")
        self._pending = methods("pending")
        self._ended = methods("finished")
        self._result = dict(methods("result"))
        self._calls = dict(methods("call"))
        self._call_ends = dict(methods("call_ended"))
        self._close = methods("close")

    @property
    def is_limiting(self) -> bool:
        """Whether any extension may limit the tokens of rows in this step."""
        return any(is_active() for is_active, _, _ in self._limits)

    @property
    def is_drafting(self) -> bool:
        """Whether any extension may request draft tokens in this step."""
        return any(is_active() for is_active, _, _ in self._num_draft_tokens)

    def arrived(self, request: Any) -> None:
        """Call `arrived` for a request that is about to be queued."""
        _call_all(self._arrived, request)

    def may_start(self, request: Any) -> MayStart:
        """Return START if all extensions agree; all are called and prepare at once."""
        if not self._may_start:
            return MayStart.START
        answers = _call_all(self._may_start, request)
        if MayStart.RESERVE in answers:
            return MayStart.RESERVE
        return MayStart(all(answers))

    def reserved(self, request: Any, tables: Sequence[Sequence[int]], num_local: int) -> None:
        """Call `reserved` with the blocks that a request was parked with."""
        _call_all(self._reserved, request, tables, num_local)

    def cached_tokens(self, request: Any, num_local: int) -> int:
        """Return the maximum of tokens available elsewhere after `num_local`."""
        return max([0, *map(int, _call_all(self._cached, request, num_local))])

    def load(self, request: Any, loads: Sequence[Load]) -> bool:
        """Start loading blocks from tiers; False if the request must wait for them."""
        return all(_call_all(self._load, request, loads))

    def num_draft_tokens(self, rows: RunningRows) -> Ints | None:
        """Return the number of draft tokens requested per row; None without any."""
        requested: Ints | None = None
        for is_active, name, method in self._num_draft_tokens:
            answer = _call(name, method, rows) if is_active() else None
            if answer is None:
                continue
            counts = np.asarray(answer, dtype=np.int64)
            if counts.shape != rows.rows.shape:
                raise PluginError(
                    f"scheduler extension {name!r}: num_draft_tokens returned shape "
                    f"{counts.shape} for {len(rows.rows)} rows."
                )
            requested = np.maximum(counts, 0 if requested is None else requested)
        return requested

    def limits(self, rows: RunningRows) -> dict[int, int]:
        """Return the maximum of tokens of each limited row in this step.

        Rows limited to 0 are removed from `rows`.
        """
        limits: dict[int, int] = {}
        for is_active, name, method in self._limits:
            answer = _call(name, method, rows) if is_active() else None
            for row, count in (answer or {}).items():
                limits[row] = min(count, limits.get(row, count))
            if answer:
                allowed = [limits.get(row, 1) > 0 for row in rows.rows.tolist()]
                rows.rows = rows.rows[allowed]
        return limits

    def prefill_chunk(self, request: Any, start: int, count: int) -> int:
        """Return how many of a prompt's next tokens a step may take."""
        for name, method in self._prefill_chunk:
            count = min(count, _call(name, method, request, start, count))
        return count

    def attach(self, scheduler: Any) -> None:
        """Give every extension the scheduler."""
        _call_all(self._attach, scheduler)

    def close(self) -> None:
        """Close every extension, then raise the first error."""
        run_all(partial(_call, name, method) for name, method in self._close)

    def pending(self) -> bool:
        """Return whether any worker half has a payload without any row."""
        return any(_call(name, method) for name, method in self._pending)

    def planned(self, plan: StepPlan) -> None:
        """Show every extension the plan, and add their payloads to it."""
        for name, method in self._planned:
            payload = _call(name, method, plan)
            if payload is not None:
                plan.payloads[name] = payload

    def finished(self, request: Any) -> int:
        """Return how many extensions keep using the ended request's blocks."""
        return sum(map(bool, _call_all(self._ended, request)))

    def result(self, payloads: Mapping[str, Sequence[bytes]]) -> None:
        """Pass each extension the payloads of its worker halves, one call per rank."""
        for name, rank_payloads in payloads.items():
            method = self._result.get(name)
            if method is not None:
                for payload in rank_payloads:
                    _call(name, method, payload)

    def call(self, name: str, verb: str, data: bytes) -> bytes | None:
        """Call the extension `name`; None if it has no answer. Raises its `EngineError`s."""
        method = self._calls.get(name)
        if method is None:
            return None
        try:
            answer: bytes | None = method(verb, data)
        except EngineError:
            raise
        except Exception as error:
            message = f"scheduler extension {name!r} failed in call {verb!r}: {error!r}"
            raise PluginError(message) from error
        return answer

    def call_ended(
        self, name: str, verb: str, data: bytes, ranks: Sequence[bytes] | None
    ) -> bytes | None:
        """Call `call_ended` of the extension `name`; None if it has nothing to add."""
        method = self._call_ends.get(name)
        return None if method is None else _call(name, method, verb, data, ranks)


def _call_all(methods: Methods, *arguments: Any) -> list[Any]:
    return [_call(name, method, *arguments) for name, method in methods]


def _call(name: str, method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except PluginError:
        raise  # already names the plugin
    except Exception as error:
        message = (
            f"scheduler extension {name!r} failed in {method.__name__}: "
            f"{type(error).__name__}: {error}"
        )
        raise PluginError(message, name, error) from error
