"""Processes below the engine: how one is started, heard of and ended; targets are the functions of
this file.
"""

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
from patience import PATIENCE_S

from core.config import EngineConfig
from core.errors import ConfigError, EngineDead, EngineError, PluginError, ProcessKilled
from core.plugin import make_plan
from core.process.channel import Channel
from core.process.cores import usable_cores
from core.process.messages import Beat, Connected, Failed, Start
from core.process.spawn import HOME, Child, memory_kills, thread_environment

KINDS = Beat | Connected | Failed
HERE = Path(__file__)
FOLDERS = [str(HERE.parent), str(HERE.parents[1])]
"""Of this file, and of what it imports."""


def start(function: str, **fields: Any) -> Start:
    defaults: dict[str, Any] = {
        "plan": make_plan(["none"]),
        "config": EngineConfig(),
        "sys_path": FOLDERS,
    }
    return Start(**{**defaults, "target": f"{HERE.stem}:{function}", "process": "test", **fields})


def heard(child: Child, most_s: float = PATIENCE_S) -> Any:
    """The next message of the child, which is given time to start."""
    until_s = time.monotonic() + most_s
    while time.monotonic() < until_s:
        message = child.receive()
        if message is not None:
            return message
    raise AssertionError("nothing was heard")


# --- what the processes do


def says_how_it_runs(start: Start, registry: Any, channel: Any) -> None:
    channel.stage("speaking")
    channel.send(Beat(float(os.environ["OMP_NUM_THREADS"]), float(sys.flags.safe_path)))
    channel.receive()


def raises(start: Start, registry: Any, channel: Any) -> None:
    channel.stage("raising")
    raise {"ours": ConfigError("--flag 3 is wrong"), "other": ZeroDivisionError("oh")}[
        start.config.model.model
    ]


def dies(start: Start, registry: Any, channel: Any) -> None:
    channel.stage("dying")
    os.kill(os.getpid(), getattr(signal, start.config.model.model))


def freezes(start: Start, registry: Any, channel: Any) -> None:
    channel.send(Beat())
    channel.receive(0.5)  # so that this is heard before we freeze
    os.kill(os.getpid(), signal.SIGSTOP)


# --- what their parents see


def test_a_child_runs_apart_from_the_users_folder_and_signals_with_its_own_threads():
    child = Child(start("says_how_it_runs"), KINDS, environment=thread_environment(3))
    try:
        assert heard(child) == Beat(3.0, 1.0)
        assert child.stage == "speaking"
        assert not Path(child.channel.folder).exists()  # both are connected, nobody else shall be
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(child.pid, number)
        assert child.is_alive
        child.channel.send(start("says_how_it_runs"))
        child.close(grace_s=10)
        assert not child.was_killed
    finally:
        child.close()
        child.close()


@pytest.mark.parametrize(
    ("what", "kind", "said"),
    [
        ("ours", ConfigError, ["--flag 3 is wrong", "stage: raising, in process 'test'"]),
        (
            "other",
            EngineError,
            ["process 'test' has failed", "stage: raising", "cause: ZeroDivisionError: oh"],
        ),
    ],
)
def test_what_a_child_raises_is_raised_in_its_parent(
    what: str, kind: type[Exception], said: list[str]
):
    child = Child(
        start("raises", config=msgspec.convert({"model": {"model": what}}, EngineConfig)), KINDS
    )
    with pytest.raises(kind) as caught:
        heard(child)
    assert all(part in str(caught.value) for part in said)
    child.close()


@pytest.mark.parametrize(("how", "kind"), [("SIGKILL", ProcessKilled), ("SIGSEGV", EngineDead)])
def test_a_child_that_cannot_say_how_it_ends_gets_an_obituary(how: str, kind: type[Exception]):
    child = Child(
        start("dies", config=msgspec.convert({"model": {"model": how}}, EngineConfig)), KINDS
    )
    with pytest.raises(
        kind, match=rf"(?s)process 'test' \(pid {child.pid}\).*stage: dying.*killed by {how}"
    ) as caught:
        heard(child)
    assert type(caught.value) is kind
    child.close()


def test_a_frozen_child_is_killed():
    child = Child(start("freezes"), KINDS)
    assert heard(child) == Beat()
    assert child.receive(0.2) is None
    assert child.is_alive
    child.close()
    assert not child.is_alive


def test_a_child_with_other_plugins_refuses_to_start():
    plan = make_plan()
    other = msgspec.structs.replace(plan.plugins[1], version="99.0")
    child = Child(
        start("dies", plan=msgspec.structs.replace(plan, plugins=(plan.plugins[0], other))), KINDS
    )
    with pytest.raises(PluginError, match=r"(?s)99\.0.*stage: loading the plugins"):
        heard(child)
    child.close()


def test_a_child_of_another_installation_says_so():
    command = [sys.executable, "-P", "-m", "core.process.child", "nowhere", "/elsewhere/core", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert "/elsewhere/core" in done.stderr
    assert HOME in done.stderr


def test_a_parent_never_waits_for_a_child_that_is_not_there():
    channel = Channel.listen(KINDS)
    for _ in range(2000):
        channel.send(Beat())
    assert channel.receive(0.01) is None
    channel.close()
    channel.send(Beat())
    assert not Path(channel.folder).exists()


def test_messages_arrive_in_order_both_ways():
    parent = Channel.listen(KINDS)
    child = Channel.connect(parent.folder, KINDS)
    for number in range(50):
        parent.send(Beat(number))
        child.send(msgspec.msgpack.encode(Beat(number)))
    assert [child.receive(5).busy_s for _ in range(50)] == [
        parent.receive(5).busy_s for _ in range(50)
    ]
    child.close()
    parent.close()


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", None), ("150000 100000", 2), ("50000 100000", 1)]
)
def test_a_container_may_use_fewer_cores_than_the_machine_has(
    tmp_path: Path, quota: str, cores: int | None
):
    everything = usable_cores(tmp_path)
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores(tmp_path) == (everything if cores is None else min(cores, everything))


@pytest.mark.parametrize(
    ("said", "kills"),
    [
        ("oom_kill 3\npgfault 7\n", 3),
        ("pgfault 7\noom_kill 0\n", 0),
        ("pgfault 7\n", None),
        (None, None),
    ],
)
def test_kills_for_want_of_memory_are_counted_where_the_system_says_them(
    tmp_path: Path, said: str | None, kills: int | None
):
    if said is not None:
        (tmp_path / "vmstat").write_text(said)
    assert memory_kills(tmp_path / "vmstat") == kills
