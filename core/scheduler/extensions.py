"""Scheduler extensions, flattened once into tuples of bound methods: what is absent costs an empty loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core.contracts.scheduling import MayStart
from core.errors import PluginError
from core.step import StepPlan

Methods = tuple[tuple[str, Callable[..., Any]], ...]
"""(extension name, bound method) of those that have the method, in the order given."""


class Extensions:
    """The optional methods of all extensions. Whatever plugin code raises leaves as `PluginError` naming it."""

    __slots__ = (
        "_attach",
        "_cached",
        "_ended",
        "_extra",
        "_may_start",
        "_planned",
        "_reserved",
        "_result",
        "drafts",
        "watch",
    )

    def __init__(self, extensions: Sequence[Any]) -> None:
        def methods(name: str) -> Methods:
            return tuple((e.name, getattr(e, name)) for e in extensions if hasattr(e, name))

        self._attach = methods("attach")
        self._may_start = methods("may_start")
        self._reserved = methods("reserved")
        self._cached = methods("cached_tokens")
        self._extra = methods("extra_tokens")
        self._planned = methods("planned")
        self._ended = methods("finished")
        self._result = dict(methods("result"))
        self.watch = any(getattr(e, "watches_tokens", True) for e in extensions)
        """Say whether any of them may look at tokens at any time."""
        self.drafts = bool(self._extra)
        """Say whether any extension plans tokens beyond the known ones."""

    def may_start(self, request: Any) -> MayStart:
        """Ask every extension, so that each begins what the request waits for; START if all agree."""
        answers = [_blamed(name, method, request) for name, method in self._may_start]
        return MayStart.RESERVE if MayStart.RESERVE in answers else MayStart(all(answers))

    def reserved(self, request: Any, tables: Sequence[Sequence[int]], num_local: int) -> None:
        """Show everyone the blocks that a request was parked with."""
        for name, method in self._reserved:
            _blamed(name, method, request, tables, num_local)

    def cached_tokens(self, request: Any, num_local: int) -> int:
        """Return tokens available elsewhere beyond `num_local`: the most any extension offers."""
        return max((int(_blamed(name, method, request, num_local)) for name, method in self._cached), default=0)

    def extra_tokens(self, request: Any) -> int:
        """Return tokens to plan beyond the known ones."""
        return sum(int(_blamed(name, method, request)) for name, method in self._extra)

    def attach(self, scheduler: Any) -> None:
        """Give every extension the scheduler to call."""
        for name, method in self._attach:
            _blamed(name, method, scheduler)

    def planned(self, plan: StepPlan) -> None:
        """Show the plan to everyone and put the payloads into it."""
        for name, method in self._planned:
            payload = _blamed(name, method, plan)
            if payload is not None:
                plan.payloads[name] = payload

    def finished(self, request: Any) -> int:
        """Return how many extensions keep the request's blocks."""
        return sum(bool(_blamed(name, method, request)) for name, method in self._ended)

    def result(self, payloads: Mapping[str, bytes]) -> None:
        """Give each extension what its worker half returned."""
        for name, payload in payloads.items():
            method = self._result.get(name)
            if method is not None:
                _blamed(name, method, payload)


def _blamed(name: str, method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except Exception as error:
        raise PluginError(
            f"scheduler extension {name!r} failed in {method.__name__}: {type(error).__name__}: {error}"
        ) from error
