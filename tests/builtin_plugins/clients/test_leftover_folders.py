"""Folders of processes that were killed during startup are removed by the next start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from builtin_plugins.clients.process.host import remove_leftovers
from builtin_plugins.executors.process.channel import Channel
from builtin_plugins.executors.process.messages import Heartbeat

KILLED = """
import os, signal
from builtin_plugins.executors.process.channel import Channel
from builtin_plugins.executors.process.messages import Heartbeat
Channel.listen(Heartbeat)
os.kill(os.getpid(), signal.SIGKILL)
"""


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_leftover_folder_of_a_dead_process_is_removed(
    tmp_path: Path,
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    (leftover,) = tmp_path.iterdir()
    alive = tmp_path / f"engine-{os.getpid()}-abc"
    alive.mkdir()
    ranks = tmp_path / f"engine-ranks-{dead_pid()}-abc"
    ranks.mkdir()
    (ranks / "meeting").touch()
    assert set(remove_leftovers(tmp_path)) == {leftover, ranks}
    assert list(tmp_path.iterdir()) == [alive]


def test_unrelated_files_are_not_removed(tmp_path: Path) -> None:
    dead = dead_pid()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    base = tmp_path / "base"
    base.mkdir()
    (base / f"engine-{dead}-link").symlink_to(outside)
    (base / f"engine-{dead}-file").touch()
    (base / f"engine-{dead}").mkdir()
    (base / "engine-mine").mkdir()
    in_use = base / f"engine-{dead}-in_use"  # its owner is in another container
    in_use.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(in_use / "up"))
        listener.listen()
        before = sorted(base.iterdir())
        assert remove_leftovers(base) == []
        assert sorted(base.iterdir()) == before
    assert (outside / "file").exists()
    assert remove_leftovers(tmp_path / "nowhere") == []


def test_folder_name_contains_the_owner_pid() -> None:
    channel = Channel.listen(Heartbeat)
    assert Path(channel.folder).name.startswith(f"engine-{os.getpid()}-")
    channel.close()
