"""Parts of the parent process: memory limits, messages with descriptors, preserved processes."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builtin_plugins.commands.serve.child_processes import ChildProcesses
from builtin_plugins.commands.serve.messages import (
    Answer,
    Keep,
    Launch,
    Request,
    SendLine,
    receive,
    send,
)
from builtin_plugins.commands.serve.system import (
    memory_limit,
    remove_folders_of,
    resident_bytes,
    used_seconds,
)
from core.errors import ConfigError

GIB = 1024**3


def test_default_memory_limit_is_a_share_of_the_memory(tmp_path: Path) -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_limit(None, tmp_path) == max(GIB, min(8 * GIB, total // 4))
    limit = tmp_path / "sys/fs/cgroup/memory.max"
    limit.parent.mkdir(parents=True)
    limit.write_text("max\n")
    assert memory_limit(None, tmp_path) == max(GIB, min(8 * GIB, total // 4))
    limit.write_text(f"{2 * GIB}\n")
    assert memory_limit(None, tmp_path) == GIB
    assert memory_limit(0) == 0
    assert memory_limit(3 * GIB) == 3 * GIB


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_large_buffers_return_to_the_system() -> None:
    script = """
import os, sys, threading
from builtin_plugins.commands.serve.system import return_large_buffers, resident_bytes

def work():
    for _ in range(5):
        buffer = b"a" * (9 << 20)
        del buffer
    done.wait()

if sys.argv[1] == "returned":
    return_large_buffers()
done = threading.Barrier(5)
before = resident_bytes(os.getpid())
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
while done.n_waiting < 4: pass
print(resident_bytes(os.getpid()) - before)
done.wait()
"""
    grown = {}
    for how in ("returned", "default"):
        output = subprocess.check_output([sys.executable, "-c", script, how], text=True)
        grown[how] = int(output)
    assert grown["returned"] < 8 << 20 < grown["default"]


@pytest.mark.parametrize("given", [1, 1000, -1, 255 * 1024**2])
def test_too_small_memory_limit_is_rejected(given: int) -> None:
    with pytest.raises(ConfigError, match=rf"--api-memory-limit: got {given};"):
        memory_limit(given)


def test_process_memory_and_cpu_time() -> None:
    assert resident_bytes(os.getpid()) > 10_000_000
    assert used_seconds(os.getpid()) > 0
    assert resident_bytes(2**30) == used_seconds(2**30) == 0


def test_large_allocation_is_limited() -> None:
    code = (
        "import os\nfrom builtin_plugins.commands.serve.system import limit_allocations\n"
        "limit_allocations(os.getpid(), 1 << 28)\nlimit_allocations(2**30, 1 << 28)\n"
        "try:\n    bytearray(4 << 30)\nexcept MemoryError:\n    print('rejected')"
    )
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    assert hard == resource.RLIM_INFINITY
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "rejected\n"
    )


def test_messages_of_any_size_with_descriptors() -> None:
    here, there = socket.socketpair()
    reading, writing = os.pipe()
    with here, there:
        large = Launch([b"x" * 50_000], [(b"NAME", b"\xff\xfe")], leader=True)
        send(here, large, [reading, writing])
        found, descriptors = receive(there, Request)
        assert found == large
        os.write(descriptors[1], b"hello")
        assert os.read(reading, 10) == b"hello"
        assert not os.get_inheritable(descriptors[0])
        send(here, SendLine(3, "line"))
        assert receive(there, Request) == (SendLine(3, "line"), [])
        here.close()
        with pytest.raises(EOFError):
            receive(there, Answer)
    for descriptor in (reading, writing, *descriptors):
        os.close(descriptor)


def test_folders_of_ended_processes_are_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    base = tmp_path / "base"
    for name in ("engine-7-a", "engine-ranks-7-a", "engine-8-a", "engine-x"):
        (base / name).mkdir(parents=True)
    (base / "engine-7-link").symlink_to(outside)
    remove_folders_of({7, 9}, base)
    assert sorted(path.name for path in base.iterdir()) == [
        "engine-7-link",
        "engine-8-a",
        "engine-x",
    ]
    assert (outside / "file").exists()
    remove_folders_of({7}, tmp_path / "nowhere")


class Owner:
    """Starts and reaps processes like the parent."""

    def __init__(self) -> None:
        self.children = ChildProcesses()

    def start(self, code: str) -> tuple[int, int]:
        """Start Python with code; return its pid and the pipe from its last argument."""
        reading, writing = os.pipe()
        environment = list(os.environb.items())
        command = [os.fsencode(word) for word in (sys.executable, "-c", code, "?")]
        pid, _ = self.children.launch(Launch(command, environment, leader=True), [writing])
        return pid, reading

    def reap(self, pid: int, timeout_s: float = 120.0) -> int:
        """Wait for a process to exit and record its status."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                self.children.ended(pid, code)
                return code
            time.sleep(0.01)
        raise AssertionError("the process did not exit")


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.children.end()


ECHO = """
import os, sys
number = int(sys.argv[1])
os.write(number, b"up\\n")
for line in sys.stdin:
    os.write(number, line.encode())
sys.exit(7)
"""


def test_preserved_process_survives_a_server_exit(owner: Owner) -> None:
    (preserved, output) = owner.start(ECHO)
    (other, _) = owner.start(ECHO)
    lines = os.fdopen(output)
    assert lines.readline() == "up\n"
    owner.children.keep(Keep("engine", b"3", [], preserved), [])
    owner.children.send_line(preserved, "hello")
    assert lines.readline() == "hello\n"
    owner.children.on_server_exit()
    assert lines.readline() == "\n"
    # it may read the end of its input before it is killed
    assert owner.reap(other) in (-signal.SIGKILL, 7)
    item = owner.children.preserved()["engine"]
    assert (item.note, item.pid) == (b"3", preserved)
    owner.children.release(preserved)
    assert owner.reap(preserved) == 7
    assert owner.children.status_of(preserved) == 7
    assert owner.children.status_of(2**30) == -signal.SIGKILL
    owner.children.keep(Keep("engine", b"4", []), [])
    assert owner.children.preserved()["engine"].pid is None
    lines.close()


def test_end_kills_all_child_processes(owner: Owner, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    path.touch()
    pid, output = owner.start(ECHO)
    reading, writing = os.pipe()
    owner.children.keep(Keep("listener", b"", [str(path)]), [writing])
    owner.children.end()
    assert owner.reap(pid) == -signal.SIGKILL
    assert not owner.children.are_alive
    assert os.read(reading, 1) == b""
    assert not path.exists()
    os.close(reading)
    os.close(output)


@pytest.mark.parametrize("fails", [lambda: [b"/nowhere/python", b"?"]])
def test_failed_launch_leaks_no_descriptor(owner: Owner, fails: Callable[[], list[bytes]]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    reading, writing = os.pipe()
    with pytest.raises(OSError, match="nowhere"):
        owner.children.launch(Launch(fails(), [], leader=False), [writing])
    os.close(reading)
    assert len(os.listdir("/proc/self/fd")) == before
