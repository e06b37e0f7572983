"""The registry as plugin code sees it: features, executors, clients and
runners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.contracts.models import ModelSource


class Registry(Protocol):
    """All entries of the loaded plugins, by kind. Immutable once constructed.

    An entry comes with its `entry` and its `plugin`; only `load` imports its target.
    """

    @property
    def plan(self) -> Any:
        """The plugin plan, equal in all processes of an engine."""

    def entries(self, kind: str) -> Sequence[Any]:
        """Return all entries of a kind, by name."""

    def rank(self, kind: str, facts: Mapping[str, Any] = MappingProxyType({})) -> Sequence[Any]:
        """Return all entries of a kind, best first.

        Each has `registered` and `reason`, which is why it does not fit, or empty.
        """

    def choose(
        self, kind: str, name: str = "auto", facts: Mapping[str, Any] = MappingProxyType({})
    ) -> Any:
        """Return the entry with this name, or the best that fits for "auto".

        Raises `ConfigError` when there is none.
        """

    def load(self, registered: Any, *, probe: bool = False) -> Any:
        """Import the target of an entry; with `probe` it does not count as in use."""

    def make(
        self, registered: Any, *arguments: Any
    ) -> tuple[Any, Callable[[Exception, str | None], str]]:
        """Construct the target of an entry.

        Returns it with a function that maps an error in a request to the client's
        message.
        """

    def blame(self, registered: Any, request: str | None = None) -> Any:
        """Return a context manager that attributes exceptions to the entry's plugin."""

    def call_hook(self, hook: str, **arguments: Any) -> Sequence[tuple[Any, Any]]:
        """Call a hook; return (plugin reference, answer) of each plugin that has it."""

    def options(self) -> Sequence[tuple[str, Any]]:
        """Return pairs of a plugin's name and option."""

    def find_model(self, model: str, config: EngineConfig) -> ModelSource | None:
        """Return the model source of the first plugin that recognises the name, or None."""

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the object of this name, made on first use.

        It is state shared by a feature's halves.
        """
