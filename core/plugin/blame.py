"""Names the culprit: turns whatever plugin code raises into an error that says whose it is and the
way out.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from dataclasses import dataclass
from types import TracebackType

from core.errors import EngineError, PluginError
from core.logs import Seldom
from core.plugin.refs import PluginRef


@dataclass(frozen=True, slots=True)
class Blame(ContextDecorator):
    """Wraps a call into plugin code, as a context manager or a decorator.

    Errors of the engine's own classes pass unchanged: contracts tell plugins to raise them. So do
    interrupts.
    """

    plugin: PluginRef
    action: str
    """What was being done: "failed in hook engine_models", "cannot be imported"."""
    process: str
    seldom: Seldom

    def __enter__(self) -> Blame:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        # SystemExit is included: a plugin must not end the process without being named.
        if isinstance(error, (Exception, SystemExit)) and not isinstance(error, EngineError):
            raise self._named(error) from error

    def told(self, error: Exception, request: str | None) -> str:
        """Return what the client of a request is told of an error in it; the rest goes to the log,
        but not each time.
        """
        if isinstance(error, EngineError) and not isinstance(error, PluginError):
            return str(error)  # contracts tell plugins to raise them, for clients
        named = error if isinstance(error, PluginError) else self._named(error)
        self.seldom.error(self.plugin.name, f"{named} Request: {request!r}.", error)
        return named.told(request)

    def _named(self, error: BaseException) -> PluginError:
        message = (
            f"{self.plugin} {self.action} (process {self.process!r}): "
            f"{type(error).__name__}: {error}. {self.plugin.way_out}"
        )
        self.seldom.count(self.plugin.name, f"{type(error).__name__}: {error}")
        return PluginError(message, self.plugin.name)
