"""Parts of the small parent of `engine serve`: bounds of memory, messages with descriptors, what it
keeps.
"""

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

from builtin_plugins.commands.serve.charges import Charges
from builtin_plugins.commands.serve.folders import remove_folders_of
from builtin_plugins.commands.serve.memory import memory_limit, resident_bytes, used_seconds
from builtin_plugins.commands.serve.messages import (
    Answer,
    Keep,
    Launch,
    Request,
    Tell,
    receive,
    send,
)
from core.errors import ConfigError

GIB = 1024**3


def test_the_bound_is_a_part_of_the_memory_there_is(tmp_path: Path) -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_limit(None, tmp_path) == max(GIB, min(8 * GIB, total // 4))
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit(None, tmp_path) == max(GIB, min(8 * GIB, total // 4))
    (tmp_path / "memory.max").write_text(f"{2 * GIB}\n")
    assert memory_limit(None, tmp_path) == GIB
    assert memory_limit(0) == 0
    assert memory_limit(3 * GIB) == 3 * GIB


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_threads_keep_no_large_pieces_that_were_freed() -> None:
    script = """
import os, sys, threading
from builtin_plugins.commands.serve.memory import keep_no_large_pieces, resident_bytes

def work():
    for _ in range(5):
        held = b"a" * (9 << 20)
        del held
    done.wait()

if sys.argv[1] == "asked":
    keep_no_large_pieces()
done = threading.Barrier(5)
before = resident_bytes(os.getpid())
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
while done.n_waiting < 4: pass
print(resident_bytes(os.getpid()) - before)
done.wait()
"""
    grown = {}
    for how in ("asked", "not asked"):
        output = subprocess.check_output([sys.executable, "-c", script, how], text=True)
        grown[how] = int(output)
    assert grown["asked"] < 8 << 20 < grown["not asked"]


@pytest.mark.parametrize("given", [1, 1000, -1, 255 * 1024**2])
def test_a_bound_that_no_server_could_hold_is_refused(given: int) -> None:
    with pytest.raises(ConfigError, match=rf"--api-memory-limit {given} "):
        memory_limit(given)


def test_memory_and_time_of_a_process_are_seen_and_of_none_are_nothing() -> None:
    assert resident_bytes(os.getpid()) > 10_000_000
    assert used_seconds(os.getpid()) > 0
    assert resident_bytes(2**30) == used_seconds(2**30) == 0


def test_no_single_allocation_takes_the_machine() -> None:
    code = (
        "import os\nfrom builtin_plugins.commands.serve.memory import limit_allocations\n"
        "limit_allocations(os.getpid(), 1 << 28)\nlimit_allocations(2**30, 1 << 28)\n"
        "try:\n    bytearray(4 << 30)\nexcept MemoryError:\n    print('refused')"
    )
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    assert hard == resource.RLIM_INFINITY
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "refused\n"
    )


def test_messages_of_any_size_and_their_descriptors_arrive() -> None:
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
        send(here, Tell(3, "line"))
        assert receive(there, Request) == (Tell(3, "line"), [])
        here.close()
        with pytest.raises(EOFError):
            receive(there, Answer)
    for descriptor in (reading, writing, *descriptors):
        os.close(descriptor)


def test_folders_of_processes_that_have_ended_are_removed_and_no_others(tmp_path: Path) -> None:
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
    """Reaps, as the parent does."""

    def __init__(self) -> None:
        self.charges = Charges()

    def start(self, code: str) -> tuple[int, int]:
        """Start Python on a text; return its number and what it writes to its last argument."""
        reading, writing = os.pipe()
        environment = list(os.environb.items())
        command = [os.fsencode(word) for word in (sys.executable, "-c", code, "?")]
        pid, _ = self.charges.launch(Launch(command, environment, leader=True), [writing])
        return pid, reading

    def reap(self, pid: int, patience_s: float = 120.0) -> int:
        """Wait for an end and note it."""
        until_s = time.monotonic() + patience_s
        while time.monotonic() < until_s:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                self.charges.ended(pid, code)
                return code
            time.sleep(0.01)
        raise AssertionError("it has not ended")


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.charges.end()


ECHO = """
import os, sys
number = int(sys.argv[1])
os.write(number, b"up\\n")
for line in sys.stdin:
    os.write(number, line.encode())
sys.exit(7)
"""


def test_a_kept_process_hears_of_the_death_of_who_serves_and_others_end(owner: Owner) -> None:
    (kept, said), (other, _) = owner.start(ECHO), owner.start(ECHO)
    lines = os.fdopen(said)
    assert lines.readline() == "up\n"
    owner.charges.keep(Keep("engine", b"3", [], kept), [])
    owner.charges.tell(kept, "hello")
    assert lines.readline() == "hello\n"
    owner.charges.part()
    assert lines.readline() == "\n"
    assert owner.reap(other) in (
        -signal.SIGKILL,
        7,
    )  # it may hear that it is alone before it is ended
    held = owner.charges.held()["engine"]
    assert (held.note, held.pid) == (b"3", kept)
    owner.charges.release(kept)
    assert owner.reap(kept) == 7
    assert owner.charges.status_of(kept) == 7
    assert owner.charges.status_of(2**30) == -signal.SIGKILL
    owner.charges.keep(Keep("engine", b"4", []), [])
    assert owner.charges.held()["engine"].pid is None
    lines.close()


def test_at_the_end_everything_goes(owner: Owner, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    path.touch()
    pid, said = owner.start(ECHO)
    reading, writing = os.pipe()
    owner.charges.keep(Keep("listener", b"", [str(path)]), [writing])
    owner.charges.end()
    assert owner.reap(pid) == -signal.SIGKILL
    assert not owner.charges.are_alive
    assert os.read(reading, 1) == b""
    assert not path.exists()
    os.close(reading)
    os.close(said)


@pytest.mark.parametrize("fails", [lambda: [b"/nowhere/python", b"?"]])
def test_what_cannot_be_started_leaves_no_descriptor(
    owner: Owner, fails: Callable[[], list[bytes]]
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    reading, writing = os.pipe()
    with pytest.raises(OSError, match="nowhere"):
        owner.charges.launch(Launch(fails(), [], leader=False), [writing])
    os.close(reading)
    assert len(os.listdir("/proc/self/fd")) == before
