"""Names the culprit: turns whatever plugin code raises into an error that says whose it is and the way out."""

from __future__ import annotations

from contextlib import ContextDecorator
from types import TracebackType

from core.errors import EngineError, PluginError
from core.plugin.refs import PluginRef


class Blame(ContextDecorator):
    """Wraps a call into plugin code, as a context manager or a decorator.

    Errors of the engine's own classes pass unchanged: contracts tell plugins to raise them. So do interrupts.
    """

    def __init__(self, plugin: PluginRef, action: str, process: str, request: str | None = None) -> None:
        self._plugin = plugin
        self._action = action
        """What was being done: "failed in hook engine_models", "cannot be imported"."""
        self._process = process
        self._request = request

    def __enter__(self) -> Blame:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # SystemExit is included: a plugin must not end the process without being named.
        if isinstance(error, (Exception, SystemExit)) and not isinstance(error, EngineError):
            raise PluginError(self.explain(error)) from error

    def explain(self, error: BaseException) -> str:
        """Return what users are told of an error; one of the engine's own classes speaks for itself."""
        if isinstance(error, EngineError):
            return str(error)
        request = "" if self._request is None else f", request {self._request!r}"
        return (
            f"{self._plugin} {self._action} (process {self._process!r}{request}): "
            f"{type(error).__name__}: {error}. {self._plugin.way_out}"
        )
