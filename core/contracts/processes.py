"""The small process above the one that serves: what it does for it and keeps for its next life."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Kept:
    """What an earlier life has asked to keep."""

    note: bytes = b""
    descriptors: tuple[int, ...] = ()
    process: Any = None
    """As `Parent.launch` has returned it."""


class Parent(Protocol):
    """Starts the process that serves, and again when that dies; keeps what must outlive it.

    Where there is one, whoever serves finds it as `registry.shared("parent", ...)`. Methods may be
    called by any thread.
    """

    @property
    def restarts(self) -> int:
        """Times the process that serves was started again; 0 in its first life."""

    def kept(self, name: str) -> Kept | None:
        """Return what was kept under a name when this life began."""

    def keep(
        self,
        name: str,
        note: bytes = b"",
        *,
        descriptors: Sequence[int] = (),
        process: Any = None,
        paths: Sequence[str] = (),
    ) -> None:
        """Keep this for the next life instead of what was kept under the name; `paths` are removed
        when all ends.

        A process that was launched and is not kept ends with this life. One that is kept is told of
        it: an empty line on its standard input.
        """

    def launch(self, command: Sequence[str], **options: Any) -> Any:
        """Start a process as `subprocess.Popen` does, but as a child of the parent; return the like
        of it.

        Options are `env`, `process_group`, `stdin` (a pipe) and `pass_fds`: one, whose number ends
        the command.
        """

    def tell(self, process: Any, line: str) -> None:
        """Write a line to the standard input of a process that was launched."""

    def serving(self, stand_in: str = "") -> None:
        """Say that we serve: from now on, our death is made good.

        `stand_in` is `module:function`, called in a process of its own while nobody else serves,
        with options, kept descriptors by name and the moment at which we are expected back
        (`time.monotonic`). SIGTERM asks it to end.
        """
