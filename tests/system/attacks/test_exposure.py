"""A server listens on its one port, on the loopback interface only."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.system.attacks.server_under_test import ServerUnderTest, start_server

LISTENS = "0A"
TABLES = ("tcp", "tcp6", "udp", "udp6")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerUnderTest]:
    with start_server() as running:
        yield running


def listening(pid: int) -> set[tuple[str, int]]:
    """Return addresses and ports on which a process listens, from /proc."""
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


def test_server_listens_on_its_port_only(server: ServerUnderTest) -> None:
    pids = server.pids()
    found = set().union(*(listening(pid) for pid in pids))
    assert len(pids) > 1
    assert found == {("127.0.0.1", server.port)}


@pytest.mark.slow
def test_ranks_listen_on_loopback_only() -> None:
    with start_server("--tensor-parallel-size", "2") as server:
        found = set().union(*(listening(pid) for pid in server.pids()))
    assert ("127.0.0.1", server.port) in found
    assert {address for address, _ in found} <= {"127.0.0.1", "::1"}


def test_socket_folders_are_private_to_user(server: ServerUnderTest) -> None:
    # Folders in /tmp that the processes have in their command lines.
    folders = set()
    for pid in server.pids():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        folders |= {Path(word) for word in words if word.startswith("/tmp/") and "engine-" in word}
    for path in folders:
        with suppress(FileNotFoundError):  # removed when both ends are connected
            assert path.stat().st_mode & 0o077 == 0, path
