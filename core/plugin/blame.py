"""Attributes exceptions of plugin code: turns them into errors that name the
plugin.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from dataclasses import dataclass
from types import TracebackType

from core.errors import EngineError, PluginError
from core.logs import RateLimitedLogger
from core.plugin.discovery import PluginRef


@dataclass(frozen=True, slots=True)
class Blame(ContextDecorator):
    """Wraps a call into plugin code, as a context manager or a decorator.

    The engine's own errors pass unchanged, because contracts let plugins raise them. So
    do interrupts.
    """

    plugin: PluginRef
    action: str
    """Predicate of the message: "failed in hook engine_models", "cannot be
    imported".
    """
    process: str
    fault_log: RateLimitedLogger

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
            raise self._plugin_error(error) from error

    def client_message(self, error: Exception, request: str | None) -> str:
        """Return the client's message for an error in a request; the log gets the details."""
        if isinstance(error, EngineError) and not isinstance(error, PluginError):
            return str(error)  # raised by the plugin for the client
        named = error if isinstance(error, PluginError) else self._plugin_error(error)
        self.fault_log.error(self.plugin.name, f"{named} Request: {request!r}.", error)
        return named.client_message(request)

    def _plugin_error(self, error: BaseException) -> PluginError:
        cause = f"{type(error).__name__}: {error!s:.1000}"
        message = (
            f"{self.plugin} {self.action} (process {self.process!r}): "
            f"{cause}. {self.plugin.disable_hint}"
        )
        self.fault_log.count(self.plugin.name, cause)
        return PluginError(message, self.plugin.name)
