"""What every launcher must hold to: messages, reasons of an exit, and no process left."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from builtin_plugins.executors.api import Connected, Failed, Heartbeat, Start, thread_environment
from builtin_plugins.launchers.contract import ChildProcess, Group, Launcher
from builtin_plugins.launchers.selection import OPTION, make_launcher
from core.api import ConfigError, EngineError
from core.api.execution import ProcessKilled
from core.api.plugins import PluginPlan, load_plan, make_plan

if TYPE_CHECKING:
    from builtin_plugins.executors.api import ParentChannel
    from core.api import Registry
    from core.testing.conformance import Subject

CONTRACT = Launcher
WAIT_S: Final = 120.0
"""Longest wait for a message or an end, on a busy machine."""
KINDS: Final = Heartbeat | Connected | Failed
LOOPBACK: Final = "127.0.0.1"
NAME: Final = "conformance child"


def check_messages_arrive_in_order_in_both_directions(subject: Subject) -> None:
    """What is sent before the child has connected arrives as well; sending never waits for it."""
    numbers = [float(number) for number in range(2000)]
    with _started(subject, "echo") as child:
        for number in numbers:
            child.send(Heartbeat(number))
        found = [_next(child).busy_s for _ in numbers]
    assert found == numbers, f"{found[:5]}... came back for {numbers[:5]}...; keep their order."


def check_environment_and_stage_are_those_of_the_child(subject: Subject) -> None:
    """Threads of libraries are set before Python starts; a stage tells where a start hangs."""
    with _started(subject, "report") as child:
        threads = _next(child).busy_s
        assert threads == 3.0, f"the child saw OMP_NUM_THREADS={threads:g} instead of 3."
        _wait(lambda: child.stage == "reporting", f"stage is {child.stage!r}, not 'reporting'.")
        assert child.pid > 0, "pid is 0 although the child has connected."
        assert NAME in child.label, f"label {child.label!r} does not name the process."
        assert "reporting" in child.label, f"label {child.label!r} does not name the stage."


def check_error_of_a_child_is_raised(subject: Subject) -> None:
    """The child's own exception, of the same class, with stage and process."""
    with _started(subject, "raise_error") as child:
        error = _end(child)
    assert type(error) is ConfigError, f"receive() raised {error!r} for a ConfigError."
    for part in ("--flag 3 is wrong", "raising", NAME):
        assert part in str(error), f"the error {error} lacks {part!r}."


def check_silent_end_has_a_reason(subject: Subject) -> None:
    """A child that was killed is known as killed, so that its requests are not blamed."""
    with _started(subject, "kill_itself") as child:
        error = _end(child)
        assert not child.is_alive, "is_alive is true after receive() raised its end."
    assert isinstance(error, ProcessKilled), f"receive() raised {error!r} after SIGKILL."
    assert NAME in str(error), f"the reason {error} does not name the process."


def check_kill_ends_a_frozen_child(subject: Subject) -> None:
    """A frozen process handles no message and no signal but SIGKILL."""
    with _started(subject, "freeze") as child:
        _next(child)
        assert child.receive(0.5) is None, "a frozen child sent a message."
        assert child.is_alive, "is_alive is false for a frozen child."
        child.kill()
        _wait(lambda: not child.is_alive, "kill() left a frozen child alive.")


def check_close_lets_a_child_finish(subject: Subject) -> None:
    """Closing waits for the child's own end, and may be called twice."""
    with _started(subject, "report") as child:
        _next(child)
        child.send(Heartbeat())
        child.close(WAIT_S)
        assert not child.is_alive, "close() left the child alive."
        child.close()


def check_a_child_ends_with_its_parent(subject: Subject) -> None:
    """A parent that is killed cannot end its children."""
    with _started(subject, "start_another") as child:
        pid = int(_next(child).busy_s)
        child.kill()
        if child.host in ("", LOOPBACK):
            _wait(lambda: not _exists(pid), "the child of a killed process lives on.")


def _launcher(subject: Subject) -> Launcher:
    made: Launcher = subject.target(subject.config, load_plan(_plan(subject)))
    return made


def _plan(subject: Subject) -> PluginPlan:
    """Return the subject's plugin and the launcher `local`, which others may build on."""
    assert subject.registry is not None, "cases() loads the registry"
    plugins = subject.registry.plan.plugins
    known = {plugin.name for plugin in plugins}
    local = make_plan(["none", "launcher_local"])
    more = tuple(plugin for plugin in local.plugins if plugin.name not in known)
    return msgspec.structs.replace(local, plugins=(*plugins, *more))


@contextmanager
def _started(subject: Subject, role: str) -> Iterator[ChildProcess]:
    launcher = _launcher(subject)
    child = None
    try:
        child = launcher.start(
            _start(subject, role), KINDS, thread_environment(3), Group("conformance", leads=True)
        )
        yield child
    finally:
        if child is not None:
            child.close()
        launcher.close()
        launcher.close()


def _start(subject: Subject, role: str) -> Start:
    options = {**subject.config.options, OPTION: subject.entry.name}
    return Start(
        target=f"{__name__}:{role}",
        process=NAME,
        plan=_plan(subject),
        config=replace(subject.config, options=options),
        sys_path=[os.path.abspath(folder) for folder in sys.path],
    )


def _next(child: ChildProcess) -> Any:
    """Return the next message."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        message = child.receive()
        if message is not None:
            return message
    raise AssertionError(f"{child.label} sent no message.")


def _end(child: ChildProcess) -> EngineError:
    """Return the error that `receive` raises."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        try:
            child.receive()
        except EngineError as error:
            return error
    raise AssertionError(f"receive() raised no error after the end of {child.label}.")


def _wait(condition: Callable[[], bool], failure: str) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, failure
        time.sleep(0.05)


def _exists(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


# --- roles of the children


def echo(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """Send every message back until the parent has gone."""
    channel.expect(Heartbeat)
    while True:
        channel.send(channel.receive())


def report(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """Report the environment, and end after a message."""
    channel.expect(Heartbeat)
    channel.stage("reporting")
    channel.send(Heartbeat(float(os.environ["OMP_NUM_THREADS"])))
    channel.receive()


def raise_error(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """Fail."""
    channel.stage("raising")
    raise ConfigError("--flag 3 is wrong")


def kill_itself(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """End without a message."""
    os.kill(os.getpid(), signal.SIGKILL)


def freeze(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """Stop after a message."""
    channel.send(Heartbeat())
    time.sleep(0.2)  # the message leaves first
    os.kill(os.getpid(), signal.SIGSTOP)


def start_another(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """Start a child, report its process id, and wait."""
    channel.expect(Heartbeat)
    launcher = make_launcher(start.config, registry)
    another = msgspec.structs.replace(start, target=f"{__name__}:report")
    child = launcher.start(another, KINDS, thread_environment(1), Group("another", leads=True))
    _next(child)
    channel.send(Heartbeat(float(child.pid)))
    channel.receive()
