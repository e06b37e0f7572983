"""The maintenance server, which answers while the API process is down."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from builtin_plugins.commands.serve.child_processes import ChildProcesses
from builtin_plugins.commands.serve.forks import Forks, send_signal
from builtin_plugins.commands.serve.parent_handle import exit_with_parent
from core.api import EngineConfig

log = logging.getLogger(__name__)

NAME: Final = "engine-stand-in"
"""Name of the process in `ps -o comm`."""


class MaintenanceServer:
    """The process of the maintenance server; it needs the descriptors of preserved items."""

    def __init__(
        self,
        config: EngineConfig,
        forks: Forks,
        children: ChildProcesses,
        close_inherited: Callable[[], None],
    ) -> None:
        self._config = config
        self._forks = forks
        self._children = children
        self._close_inherited = close_inherited
        self.target = ""
        """Function that serves, as `module:function`; empty: none."""
        self.pid = 0
        """0: not running."""

    def stop(self) -> None:
        """Request the end of a running server."""
        if self.pid:
            send_signal(self.pid, signal.SIGTERM)

    def start(self, back_s: float) -> None:
        """Start the maintenance server, which answers while the API process is down."""
        if not self.target or self.pid:
            return
        self.pid = self._forks.fork(NAME, self._close_inherited)
        if self.pid:
            return
        try:
            threading.Thread(
                target=exit_with_parent,
                args=(self._forks.liveness_read, list),
                name="lifeline",
                daemon=True,
            ).start()
            module, _, function = self.target.partition(":")
            descriptors = {
                name: preserved.descriptors
                for name, preserved in self._children.preserved().items()
            }
            getattr(importlib.import_module(module), function)(
                self._config.options, descriptors, back_s
            )
        except Exception:  # a plugin error ends this process only
            log.exception(
                "the maintenance server failed; connections wait until the API process is back"
            )
        finally:
            os._exit(0)
