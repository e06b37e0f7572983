"""Child processes: start, messages and end. The targets are functions of this file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builtin_plugins.executors.process.channel import Channel
from builtin_plugins.executors.process.messages import Connected, Failed, Heartbeat, Start
from builtin_plugins.executors.process.spawn import HOME, Child, thread_environment
from core.config import EngineConfig
from core.errors import ConfigError, EngineDead, EngineError, PluginError, ProcessKilled
from core.plugin import make_plan
from tests.timeouts import TIMEOUT_S

KINDS = Heartbeat | Connected | Failed
HERE = Path(__file__)
FOLDERS = [str(HERE.parent), str(HERE.parents[4])]
"""Folders of this file and of its imports."""


def start(function: str, **fields: Any) -> Start:
    defaults: dict[str, Any] = {
        "plan": make_plan(["none"]),
        "config": EngineConfig(),
        "sys_path": FOLDERS,
    }
    return Start(**{**defaults, "target": f"{HERE.stem}:{function}", "process": "test", **fields})


def receive(child: Child, timeout_s: float = TIMEOUT_S) -> Any:
    """Return the next message of the child; waits for its start."""
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        message = child.receive()
        if message is not None:
            return message
    raise AssertionError("no message arrived")


# --- targets of the child processes


def report_settings(start: Start, registry: Any, channel: Any) -> None:
    channel.stage("speaking")
    channel.send(Heartbeat(float(os.environ["OMP_NUM_THREADS"]), float(sys.flags.safe_path)))
    channel.receive()


def raise_error(start: Start, registry: Any, channel: Any) -> None:
    channel.stage("raising")
    errors = {"ours": ConfigError("--flag 3 is wrong"), "other": ZeroDivisionError("oh")}
    raise errors[start.config.model.model]


def kill_itself(start: Start, registry: Any, channel: Any) -> None:
    channel.stage("dying")
    os.kill(os.getpid(), getattr(signal, start.config.model.model))


def freeze(start: Start, registry: Any, channel: Any) -> None:
    channel.send(Heartbeat())
    channel.receive(0.5)  # lets the parent receive the message first
    os.kill(os.getpid(), signal.SIGSTOP)


# --- tests of the parent


def test_child_has_its_own_folder_process_group_and_thread_settings():
    child = Child(start("report_settings"), KINDS, environment=thread_environment(3))
    try:
        assert receive(child) == Heartbeat(3.0, 1.0)
        assert child.stage == "speaking"
        assert not Path(child.channel.folder).exists()  # removed once both are connected
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(child.pid, number)
        assert child.is_alive
        child.channel.send(start("report_settings"))
        child.close(grace_s=10)
        assert not child.was_killed
    finally:
        child.close()
        child.close()


@pytest.mark.parametrize(
    ("error", "kind", "parts"),
    [
        ("ours", ConfigError, ["--flag 3 is wrong", "stage: raising, in process 'test'"]),
        (
            "other",
            EngineError,
            ["process 'test' has failed", "stage: raising", "cause: ZeroDivisionError: oh"],
        ),
    ],
)
def test_error_of_a_child_is_raised_in_the_parent(
    error: str, kind: type[Exception], parts: list[str]
):
    config = msgspec.convert({"model": {"model": error}}, EngineConfig)
    child = Child(start("raise_error", config=config), KINDS)
    with pytest.raises(kind) as caught:
        receive(child)
    assert all(part in str(caught.value) for part in parts)
    child.close()


@pytest.mark.parametrize(
    ("signal_name", "kind"), [("SIGKILL", ProcessKilled), ("SIGSEGV", EngineDead)]
)
def test_silent_exit_of_a_child_gets_an_exit_reason(signal_name: str, kind: type[Exception]):
    config = msgspec.convert({"model": {"model": signal_name}}, EngineConfig)
    child = Child(start("kill_itself", config=config), KINDS)
    with pytest.raises(
        kind,
        match=rf"(?s)process 'test' \(pid {child.pid}\).*stage: dying.*killed by {signal_name}",
    ) as caught:
        receive(child)
    assert type(caught.value) is kind
    child.close()


def test_frozen_child_is_killed():
    child = Child(start("freeze"), KINDS)
    assert receive(child) == Heartbeat()
    assert child.receive(0.2) is None
    assert child.is_alive
    child.close()
    assert not child.is_alive


def test_child_with_other_plugins_refuses_to_start():
    plan = make_plan()
    other = msgspec.structs.replace(plan.plugins[1], version="99.0")
    changed = msgspec.structs.replace(plan, plugins=(plan.plugins[0], other))
    child = Child(start("kill_itself", plan=changed), KINDS)
    with pytest.raises(PluginError, match=r"(?s)99\.0.*stage: loading the plugins"):
        receive(child)
    child.close()


def test_child_of_another_installation_names_the_cause():
    command = [
        sys.executable,
        "-P",
        "-m",
        "builtin_plugins.executors.process.child",
        "nowhere",
        "/elsewhere/core",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert "/elsewhere/core" in done.stderr
    assert HOME in done.stderr


def test_parent_does_not_wait_for_a_missing_child():
    channel = Channel.listen(KINDS)
    for _ in range(2000):
        channel.send(Heartbeat())
    assert channel.receive(0.01) is None
    channel.close()
    channel.send(Heartbeat())
    assert not Path(channel.folder).exists()


def test_messages_arrive_in_order_in_both_directions():
    parent = Channel.listen(KINDS)
    child = Channel.connect(parent.folder, KINDS)
    for number in range(50):
        parent.send(Heartbeat(number))
        child.send(msgspec.msgpack.encode(Heartbeat(number)))
    assert [child.receive(5).busy_s for _ in range(50)] == [
        parent.receive(5).busy_s for _ in range(50)
    ]
    child.close()
    parent.close()
