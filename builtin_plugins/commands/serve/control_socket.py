"""The control socket of the API process: its requests to the parent."""

from __future__ import annotations

import selectors
import socket
from typing import Any, Final, Protocol

from builtin_plugins.commands.serve.child_processes import ChildProcesses
from builtin_plugins.commands.serve.messages import (
    Answer,
    Drained,
    Ended,
    Keep,
    Launch,
    Leave,
    Release,
    Request,
    SendLine,
    Serving,
    receive,
    send,
)

ANSWER_S: Final = 10.0
"""Timeout in seconds for reading one complete request from a child."""


class Supervisor(Protocol):
    """The parent, as requests of the API process change it."""

    def reap(self) -> None:
        """Collect ended child processes."""

    def on_launch(self) -> None:
        """The API process has launched a process."""

    def on_serving(self, maintenance_target: str) -> None:
        """The server is up."""

    def on_drained(self) -> None:
        """The server has stopped."""

    def on_leave(self, status: int) -> None:
        """The API process will exit."""


class ControlSocket:
    """Executes the requests of one API process at a time."""

    def __init__(
        self, supervisor: Supervisor, children: ChildProcesses, selector: selectors.BaseSelector
    ) -> None:
        self._supervisor = supervisor
        self._children = children
        self._selector = selector
        self._socket: socket.socket | None = None

    def open(self, connection: socket.socket) -> None:
        """Serve requests from a new API process."""
        self._socket = connection
        connection.settimeout(ANSWER_S)
        self._selector.register(connection, selectors.EVENT_READ, self._answer)

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def close_in_child(self) -> None:
        """Close the copy of the socket in a forked process."""
        if self._socket is not None:
            self._socket.close()

    def _answer(self) -> None:
        """Execute one request of the API process."""
        connection = self._socket
        if connection is None:
            return
        answer = Answer()
        passed = list[int]()
        try:
            request, descriptors = receive(connection, Request)
            try:
                number, passed = self._execute(request, descriptors)
                answer = Answer(number)
            except OSError as error:
                answer = Answer(error=f"the parent failed to execute the request: {error}")
            send(connection, answer, passed)
        except (OSError, EOFError):
            self.close()  # it has died or is about to

    def _execute(self, request: Any, descriptors: list[int]) -> tuple[int, list[int]]:
        """Execute a request; return a number and descriptors."""
        match request:
            case Launch():
                pid, descriptor = self._children.launch(request, descriptors)
                self._supervisor.on_launch()
                return pid, [descriptor]
            case Ended(pid):
                self._supervisor.reap()
                return self._children.status_of(pid), []
            case SendLine(pid, line):
                self._children.send_line(pid, line)
            case Release(pid):
                self._supervisor.reap()
                self._children.release(pid)
            case Keep():
                self._children.keep(request, descriptors)
            case Serving(maintenance_target):
                self._supervisor.on_serving(maintenance_target)
            case Drained():
                self._supervisor.on_drained()
            case Leave(status):
                self._supervisor.on_leave(status)
        return 0, []
