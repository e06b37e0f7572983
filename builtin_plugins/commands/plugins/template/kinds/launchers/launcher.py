"""A launcher: starts the processes of the engine.

This one delegates to the builtin `local` launcher and adds an environment variable. A launcher for
other places builds on `RemoteChild` of `builtin_plugins.executors.api`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builtin_plugins.executors.api import Start
    from builtin_plugins.launchers.api import ChildProcess, Group, Launcher
    from core.api import EngineConfig, Registry

ARENAS = {"MALLOC_ARENA_MAX": "2"}
"""Fewer arenas of malloc: less memory in processes with many threads."""


class Acme:
    """Starts processes of this machine."""

    def __init__(self, config: EngineConfig, registry: Registry) -> None:
        self._inner: Launcher = registry.load(registry.choose("launchers", "local"))(
            config, registry
        )
        self.host = self._inner.host
        """Address of this process for its children."""

    def start(
        self, what: Start, kinds: Any, environment: Mapping[str, str], group: Group
    ) -> ChildProcess:
        """Start a process and return at once."""
        return self._inner.start(what, kinds, {**environment, **ARENAS}, group)

    def close(self) -> None:
        """Release what the groups share."""
        self._inner.close()
