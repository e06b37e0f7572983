"""Measures how long calls into plugin code take in one process, by plugin.

Long calls are all timed. Of short ones about one in sixteen is timed at random; it
stands for the untimed calls before it.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from core.contracts.registry import Registry

T = TypeVar("T")

AnyBlame = AbstractContextManager[Any]
NO_BLAME: Final[AnyBlame] = nullcontext()
SAMPLE_INTERVAL: Final = 16
"""Average number of short calls per timed one."""
LONG_S: Final = 100e-6
"""Duration from which every call is timed; reading the clock costs less than
1 % of it.
"""


def call_timer(registry: Registry) -> CallTimer:
    """Return the call timer of this process."""
    return cast(CallTimer, registry.shared("call_timer", CallTimer))


class CallTimer:
    """Seconds by plugin. A call includes the calls and waits inside it; threads add up."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._random = Random().random
        self._seconds: dict[str, float] = {}

    def totals(self) -> Mapping[str, float]:
        """Return the estimated seconds of each plugin."""
        return dict(self._seconds)

    def wrap(self, plugin: str, made: T, blame: AnyBlame = NO_BLAME) -> T:
        """Return a proxy of a plugin's object that times its methods.

        Exceptions pass through `blame`, which may name the plugin.
        """
        return cast(T, _TimedProxy(self, plugin, made, blame))

    def timed(
        self, plugin: str, call: Callable[..., T], blame: AnyBlame = NO_BLAME
    ) -> Callable[..., T]:
        """Return the function with its calls timed for a plugin."""
        self._seconds.setdefault(plugin, 0.0)
        if inspect.iscoroutinefunction(call):
            return cast("Callable[..., T]", self._timed_coroutine(plugin, call, blame))
        clock = self._clock
        calls_left = 1
        num_represented = 1

        @wraps(call, updated=())
        def called(*arguments: Any, **keywords: Any) -> T:
            nonlocal calls_left, num_represented
            calls_left -= 1
            if calls_left:
                try:  # free of cost, unlike entering `blame`
                    return call(*arguments, **keywords)
                except Exception:
                    with blame:
                        raise
            num_calls = num_represented
            calls_left = 1  # concurrent calls of other threads are timed, too
            num_represented = 1
            started_s = clock()
            try:
                with blame:
                    return call(*arguments, **keywords)
            finally:
                took_s = clock() - started_s
                self._seconds[plugin] += took_s * num_calls
                if took_s < LONG_S:
                    num_represented = 1 + int((2 * SAMPLE_INTERVAL - 1) * self._random())
                calls_left = num_represented

        return called

    def _timed_coroutine(
        self, plugin: str, call: Callable[..., Any], blame: AnyBlame
    ) -> Callable[..., Any]:
        @wraps(call, updated=())
        async def called(*arguments: Any, **keywords: Any) -> Any:
            started_s = self._clock()
            try:
                with blame:
                    return await call(*arguments, **keywords)
            finally:
                self._seconds[plugin] += self._clock() - started_s

        return called


class _TimedProxy:
    """Stands for an object; each of its methods is looked up and wrapped
    once.
    """

    def __init__(self, timer: CallTimer, plugin: str, made: Any, blame: AnyBlame) -> None:
        self._timer = timer
        self._plugin = plugin
        self._made = made
        self._blame = blame

    @property
    # isinstance checks see the object's class
    def __class__(self) -> type[Any]:
        return type(self._made)

    @__class__.setter
    def __class__(self, value: type[Any]) -> None:
        raise TypeError("an object of a plugin's keeps its class")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._made, name)
        if not inspect.ismethod(found):
            return found
        timed = self._timer.timed(self._plugin, found, self._blame)
        setattr(self, name, timed)
        return timed
