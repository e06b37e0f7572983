"""What is plugged in, as those see it that are given the registry: hooks of features, executors,
clients, runners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.contracts.models import ModelSource


class Registry(Protocol):
    """All entries that loaded plugins bring, by kind; sealed when made.

    An entry comes as an opaque object with its `entry` and the `plugin` it is of; what it stands
    for is imported by `load` only.
    """

    @property
    def plan(self) -> Any:
        """The plugins that are loaded: opaque, and the same in every process of an engine
        (`core.process.messages.Start`).
        """

    def entries(self, kind: str) -> Sequence[Any]:
        """Return all entries of a kind, by name."""

    def rank(self, kind: str, facts: Mapping[str, Any] = MappingProxyType({})) -> Sequence[Any]:
        """Return all entries of a kind, best first, each as `registered` with the `reason` why it
        does not fit, if any.
        """

    def choose(
        self, kind: str, wanted: str = "auto", facts: Mapping[str, Any] = MappingProxyType({})
    ) -> Any:
        """Return the entry called `wanted`, or for "auto" the best that fits.

        Raises `ConfigError` when there is none.
        """

    def load(self, registered: Any, *, probe: bool = False) -> Any:
        """Import what an entry stands for; one that is only probed does not count among those in
        use.
        """

    def make(
        self, registered: Any, *arguments: Any
    ) -> tuple[Any, Callable[[Exception, str | None], str]]:
        """Construct what an entry stands for; return it, and what says of an error in a request
        that it is to blame.
        """

    def blame(self, registered: Any, request: str | None = None) -> Any:
        """Return a context manager that gives the entry's plugin the blame for what is raised in
        it.
        """

    def find_model(self, model: str, config: EngineConfig) -> ModelSource | None:
        """Return what the first plugin says that knows the model, or None."""

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returned when first asked under this name: what a feature's halves in
        one process share.
        """
