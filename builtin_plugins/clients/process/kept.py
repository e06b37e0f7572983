"""Where engines are started: as children of ours, or of the parent that keeps them when the process
that serves dies.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Any, Final

from builtin_plugins.clients.process.messages import FromEngine
from core.api import Parent, Registry
from core.process.messages import Start
from core.process.spawn import Child

NAME: Final = "engine"
"""Under which the parent keeps it; the note with it is the number of its restarts."""


class Home:
    """Starts engines, and knows the one that an earlier life of ours has left."""

    def __init__(self, registry: Registry) -> None:
        self._parent: Parent | None = registry.shared("parent", lambda: None)
        self._kept = None if self._parent is None else self._parent.kept(NAME)

    @property
    def our_restarts(self) -> int:
        """Times we were started again."""
        return 0 if self._parent is None else self._parent.restarts

    @property
    def engine_restarts(self) -> int:
        """Times that engines were started again in our earlier lives: once more if the last one has
        died with us.
        """
        if self._kept is None:
            return 0
        return int(self._kept.note) + (
            self._kept.process is None or self._kept.process.poll() is not None
        )

    def start(self, start: Start) -> Child:
        """Start an engine."""
        if self._parent is None:
            return Child(start, FromEngine)
        return Child(start, FromEngine, launch=self._parent.launch)

    def inherit(self, start: Start) -> Child | None:
        """Return the engine that an earlier life has left, on its way to us; None if there is none."""
        if self._parent is None or self._kept is None or self._kept.process is None:
            return None
        process = self._kept.process
        if process.poll() is not None:
            return None

        def found(
            command: Sequence[str], *, pass_fds: Sequence[int], **options: Any
        ) -> subprocess.Popen[bytes]:
            os.write(
                pass_fds[0], b"serving\n"
            )  # the pipe it tells stages to has gone with who read it
            popen: subprocess.Popen[bytes] = process
            return popen

        child = Child(start, FromEngine, launch=found)
        self._parent.tell(process, child.channel.folder)
        return child

    def keep(self, child: Child | None, restarts: int) -> None:
        """Let this engine outlive us, or none."""
        if self._parent is not None:
            self._parent.keep(
                NAME, str(restarts).encode(), process=None if child is None else child.process
            )
