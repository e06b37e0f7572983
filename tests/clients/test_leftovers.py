"""Folders of processes that were killed in their start: removed by the next start, and nobody
else's.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from builtin_plugins.clients.process.leftovers import remove_leftovers
from core.process.channel import Channel
from core.process.messages import Beat

KILLED = """
import os, signal
from core.process.channel import Channel
from core.process.messages import Beat
Channel.listen(Beat)
os.kill(os.getpid(), signal.SIGKILL)
"""


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_the_folder_of_a_killed_start_is_removed_and_that_of_a_living_one_stays(
    tmp_path: Path,
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    (left,) = tmp_path.iterdir()
    alive = tmp_path / f"engine-{os.getpid()}-abc"
    alive.mkdir()
    ranks = tmp_path / f"engine-ranks-{dead_pid()}-abc"
    ranks.mkdir()
    (ranks / "meeting").touch()
    assert set(remove_leftovers(tmp_path)) == {left, ranks}
    assert list(tmp_path.iterdir()) == [alive]


def test_nothing_else_is_touched(tmp_path: Path) -> None:
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
    heard = base / f"engine-{dead}-heard"  # its owner is in another container
    heard.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(heard / "up"))
        listener.listen()
        before = sorted(base.iterdir())
        assert remove_leftovers(base) == []
        assert sorted(base.iterdir()) == before
    assert (outside / "file").exists()
    assert remove_leftovers(tmp_path / "nowhere") == []


def test_a_folders_name_says_whose_it_is() -> None:
    channel = Channel.listen(Beat)
    assert Path(channel.folder).name.startswith(f"engine-{os.getpid()}-")
    channel.close()
