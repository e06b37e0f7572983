"""The parent of the serving process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class PreservedState:
    """State that an earlier serving process preserved for its successor."""

    note: bytes = b""
    descriptors: tuple[int, ...] = ()
    process: Any = None
    """The process object that `Parent.launch` returned."""


class ServerParent(Protocol):
    """What a server learns from its parent, and reports to it; any thread may call the methods.

    An API server of several has no more: the parent of all holds what they share.
    """

    @property
    def restarts(self) -> int:
        """Number of restarts of the serving process."""

    def preserved(self, name: str) -> PreservedState | None:
        """Return the state preserved under a name when this process started."""

    def report_serving(self, stand_in: str = "") -> None:
        """Report that this process serves; from now on the parent restarts it.

        `stand_in` is `module:function` of a placeholder server. It runs in its own
        process while the server restarts, with options, the preserved descriptors by
        name, and the expected time of return (`time.monotonic`). SIGTERM ends it.
        """

    def report_drained(self) -> None:
        """Report that the server has stopped: this process is killed if it does not end soon."""


@runtime_checkable
class Parent(ServerParent, Protocol):
    """Starts the serving process, restarts it when it dies, and preserves state for it.

    Found as `registry.shared("parent", ...)`.
    """

    def preserve(
        self,
        name: str,
        note: bytes = b"",
        *,
        descriptors: Sequence[int] = (),
        process: Any = None,
        paths: Sequence[str] = (),
    ) -> None:
        """Preserve state for the next serving process; replaces earlier state of the same name.

        `paths` are removed at the very end. A launched process that is not preserved
        ends with the serving process. A preserved one gets an empty line on its
        standard input.
        """

    def launch(self, command: Sequence[str], **options: Any) -> Any:
        """Start a child of the parent like `subprocess.Popen`; return a similar object.

        Options: `env`, `process_group`, `stdin` (a pipe) and `pass_fds`, one
        descriptor; its number is appended to the command.
        """

    def send_line(self, process: Any, line: str) -> None:
        """Write a line to the standard input of a launched process."""
