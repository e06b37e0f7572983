"""What a server shows to the network: the one port that was asked for, on this machine only."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from attacked import Attacked, attacked

LISTENS = "0A"
TABLES = ("tcp", "tcp6", "udp", "udp6")


@pytest.fixture(scope="module")
def server() -> Iterator[Attacked]:
    with attacked() as found:
        yield found


def listening(pid: int) -> set[tuple[str, int]]:
    """Return addresses and ports on which a process listens, as the system tells."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in TABLES:
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if rest[5] in inodes and (state == LISTENS or table.startswith("udp")):
                address, _, port = local.partition(":")
                words = [
                    bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)
                ]
                found.add((str(ipaddress.ip_address(b"".join(words))), int(port, 16)))
    return found


def test_all_that_listens_is_on_this_machine_and_the_one_port_was_asked_for(
    server: Attacked,
) -> None:
    pids = server.processes()
    found = set().union(*(listening(pid) for pid in pids))
    assert len(pids) > 1
    assert found == {("127.0.0.1", server.port)}


@pytest.mark.slow
def test_ranks_listen_on_this_machine_only() -> None:
    with attacked("--tensor-parallel-size", "2") as server:
        found = set().union(*(listening(pid) for pid in server.processes()))
    assert ("127.0.0.1", server.port) in found
    assert {address for address, _ in found} <= {"127.0.0.1", "::1"}


def test_files_of_the_server_are_for_its_user_only(server: Attacked) -> None:
    """Folders in the temporary directory that processes of the server name in their command lines."""
    named = set()
    for pid in server.processes():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        named |= {Path(word) for word in words if word.startswith("/tmp/") and "engine-" in word}
    for path in named:
        with suppress(FileNotFoundError):  # removed as soon as both ends are connected
            assert path.stat().st_mode & 0o077 == 0, path
