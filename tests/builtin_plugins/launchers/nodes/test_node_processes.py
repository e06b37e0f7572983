"""A head and its node in one process: launches, ends, and what happens when either leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.executors.api import Credentials, Exit
from builtin_plugins.launchers.nodes import node as node_module
from builtin_plugins.launchers.nodes.head import GOOD_END, NodePort
from core.errors import EngineDead
from tests.builtin_plugins.launchers.nodes.test_node_refusals import (
    free_port,
    head_of,
    key_file,
    node,
    port_of,
    settings_of,
)
from tests.timeouts import TIMEOUT_S

CREDENTIALS = Credentials(up="", down="", parent_key="", public_key="", secret_key="secret")


class StubProcess:
    """A process that ends when it is killed, or when `end` is set."""

    made: list[StubProcess] = []

    def __init__(self, credentials: Credentials, environment: dict[str, str]) -> None:
        self.host = credentials.host
        self.environment = environment
        self.end: Exit | None = None
        self.made.append(self)

    def exit(self) -> Exit | None:
        return self.end

    def kill(self) -> None:
        self.end = self.end or Exit("it was killed by SIGKILL", was_killed=True)

    def wait(self) -> None:
        assert self.end is not None


class Running:
    """A node that runs in a thread."""

    def __init__(self, settings: Any, key: str) -> None:
        self.node = node(settings, key)
        self.status: int | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.status = self.node.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error


def until(condition: Callable[[], Any]) -> Any:
    until_s = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return found


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[StubProcess]:
    monkeypatch.setattr(node_module, "HostProcess", StubProcess)
    monkeypatch.setattr(StubProcess, "made", [])
    monkeypatch.setattr(node_module, "REJOIN_S", 0.5)
    return StubProcess.made


@contextmanager
def joined(tmp_path: Path) -> Iterator[tuple[NodePort, Running, Any]]:
    key = key_file(tmp_path / "key", b"k")
    with port_of(key) as (port, settings):
        running = Running(settings, key)
        try:
            yield port, running, settings
        finally:
            running.node.stop()
            running.thread.join()


def test_processes_of_a_node_start_and_their_ends_arrive(
    processes: list[StubProcess], tmp_path: Path
) -> None:
    with joined(tmp_path) as (port, running, _):
        remote = [port.launch(1, CREDENTIALS, {"A": str(i)}) for i in range(3)]
        until(lambda: len(processes) == 3)
        assert [each.environment for each in processes] == [{"A": str(i)} for i in range(3)]
        assert processes[0].host.startswith("127.")
        assert [each.exit() for each in remote] == [None] * 3
        processes[1].end = Exit("it exited with status 3")
        assert until(remote[1].exit) == Exit("it exited with status 3")
        remote[2].kill()
        assert until(remote[2].exit).was_killed
        assert remote[0].exit() is None
        running.node.stop()
        found = until(remote[0].exit)  # with its node
        assert found.was_killed
        running.thread.join()
        assert processes[0].end is not None
        assert running.status == 0


@pytest.mark.parametrize("delay_s", [0.0, 0.5])
def test_node_ends_well_after_the_processes_of_its_head(
    delay_s: float, processes: list[StubProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that reads the last message late."""
    receive = node_module.HeadConnection.receive
    is_closed = threading.Event()

    def receive_late(connection: node_module.HeadConnection) -> Any:
        if is_closed.wait(0):
            time.sleep(delay_s)
        return receive(connection)

    monkeypatch.setattr(node_module.HeadConnection, "receive", receive_late)
    with joined(tmp_path) as (port, running, _):
        remote = port.launch(1, CREDENTIALS, {})
        until(lambda: processes)
        processes[0].end = Exit(GOOD_END)
        until(remote.exit)
        is_closed.set()
        port.close()
        running.thread.join()
        assert (running.status, running.error) == (0, None)


def test_node_kills_its_processes_and_ends_without_its_head(
    processes: list[StubProcess], tmp_path: Path
) -> None:
    with joined(tmp_path) as (port, running, _):
        port.launch(1, CREDENTIALS, {})
        until(lambda: processes)
        port.close()
        running.thread.join()
        assert processes[0].end is not None
        assert isinstance(running.error, EngineDead)
        assert "has left and is not back" in str(running.error)


def test_node_joins_the_next_engine_of_its_head(
    processes: list[StubProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "REJOIN_S", TIMEOUT_S)
    key = key_file(tmp_path / "key", b"k")
    settings = settings_of(key, free_port(), node_timeout=TIMEOUT_S)
    running = Running(settings, key)
    try:
        with head_of(settings) as port:
            port.launch(1, CREDENTIALS, {})
            until(lambda: processes)
        with head_of(settings) as following:
            following.launch(1, CREDENTIALS, {})
            until(lambda: len(processes) == 2)
            assert processes[0].end is not None
            assert processes[1].end is None
    finally:
        running.node.stop()
        running.thread.join()


def test_second_node_of_a_rank_waits_for_the_first_to_leave(
    processes: list[StubProcess], tmp_path: Path
) -> None:
    with joined(tmp_path) as (port, running, settings):
        port.launch(1, CREDENTIALS, {})
        until(lambda: processes)
        second = Running(settings, settings.key_file)
        second.thread.join(1.0)
        assert second.thread.is_alive()
        assert running.thread.is_alive()
        second.node.stop()
        second.thread.join()


def test_missing_node_ends_its_processes_by_name(tmp_path: Path) -> None:
    key = key_file(tmp_path / "key", b"k")
    with port_of(key) as (port, settings):
        port._until_s = time.monotonic()
        found = until(port.launch(1, CREDENTIALS, {}).exit)
        assert f"node 1 of --nnodes {settings.num_nodes} has not joined" in found.cause
        assert "--node-timeout" in found.cause
