"""Starts processes of this machine, which talk to their parent over Unix sockets."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from builtin_plugins.executors.api import Child, Start
from builtin_plugins.launchers.contract import Group

if TYPE_CHECKING:
    from builtin_plugins.servers.api import Parent
    from core.api import EngineConfig, Registry


class LocalLauncher:
    """Starts children of this process.

    Children that outlive this process are started by the parent process, if there is one.
    """

    host = ""

    def __init__(self, config: EngineConfig, registry: Registry) -> None:
        del config
        self._parent: Parent | None = registry.shared("parent", lambda: None)

    def start(self, what: Start, kinds: Any, environment: Mapping[str, str], group: Group) -> Child:
        """Start a process."""
        launch: Any = subprocess.Popen
        if self._parent is not None and group.outlives_parent:
            launch = self._parent.launch
        return Child(what, kinds, leader=group.leads, environment=environment, launch=launch)

    def close(self) -> None:
        """Release nothing: local children share nothing."""
