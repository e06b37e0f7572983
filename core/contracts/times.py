"""How long calls into plugins' code take in one process, by plugin; shown to operators. Knows no
plugin.

Of calls that take long each is timed; of short ones about one in sixteen, at random places, which
stands for those before it.
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

Blame = AbstractContextManager[Any]
NOBODY: Final[Blame] = nullcontext()
EVERY: Final = 16
"""Of how many short calls one is timed, on average."""
LONG_S: Final = 100e-6
"""Looking at a clock costs less than a hundredth of this."""


def times_of(registry: Registry) -> Times:
    """Return what stands around the objects that plugins have made in this process."""
    return cast(Times, registry.shared("times", Times))


class Times:
    """Seconds by plugin. A call's time includes what it calls and waits for; two threads' add up."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._random = Random().random
        self._seconds: dict[str, float] = {}

    def so_far(self) -> Mapping[str, float]:
        """Return the seconds that each plugin has taken, as far as its calls are timed."""
        return dict(self._seconds)

    def around(self, plugin: str, made: T, blame: Blame = NOBODY) -> T:
        """Return an object of a plugin's with its methods timed; in all else it is that object.

        What they raise comes through `blame`, which may name the plugin.
        """
        return cast(T, _Timed(self, plugin, made, blame))

    def timed(self, plugin: str, call: Callable[..., T], blame: Blame = NOBODY) -> Callable[..., T]:
        """Return a function with the time of its calls counted for a plugin."""
        self._seconds.setdefault(plugin, 0.0)
        if inspect.iscoroutinefunction(call):
            return cast("Callable[..., T]", self._awaited(plugin, call, blame))
        clock = self._clock
        left = 1
        stands_for = 1

        @wraps(call, updated=())
        def called(*arguments: Any, **keywords: Any) -> T:
            nonlocal left, stands_for
            left -= 1
            if left:
                try:  # which costs nothing; entering `blame` would
                    return call(*arguments, **keywords)
                except Exception:
                    with blame:
                        raise
            # whoever calls meanwhile, from another thread, is timed, too
            calls = stands_for
            left = 1
            stands_for = 1
            begun_s = clock()
            try:
                with blame:
                    return call(*arguments, **keywords)
            finally:
                took_s = clock() - begun_s
                self._seconds[plugin] += took_s * calls
                left = stands_for = (
                    1 if took_s >= LONG_S else 1 + int((2 * EVERY - 1) * self._random())
                )

        return called

    def _awaited(self, plugin: str, call: Callable[..., Any], blame: Blame) -> Callable[..., Any]:
        @wraps(call, updated=())
        async def called(*arguments: Any, **keywords: Any) -> Any:
            begun_s = self._clock()
            try:
                with blame:
                    return await call(*arguments, **keywords)
            finally:
                self._seconds[plugin] += self._clock() - begun_s

        return called


class _Timed:
    """Stands for an object; each of its methods is looked up and wrapped once."""

    def __init__(self, times: Times, plugin: str, made: Any, blame: Blame) -> None:
        self._times = times
        self._plugin = plugin
        self._made = made
        self._blame = blame

    @property
    def __class__(self) -> type[Any]:  # who asks whether it is of some class asks about the object
        return type(self._made)

    @__class__.setter
    def __class__(self, value: type[Any]) -> None:
        raise TypeError("an object of a plugin's keeps its class")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._made, name)
        if not inspect.ismethod(found):
            return found
        timed = self._times.timed(self._plugin, found, self._blame)
        setattr(self, name, timed)
        return timed
