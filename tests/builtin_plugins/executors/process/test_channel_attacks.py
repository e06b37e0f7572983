"""Unix sockets between processes: other users cannot reach them, other bytes are no message."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from builtin_plugins.executors.process.channel import Channel
from builtin_plugins.executors.process.messages import Heartbeat
from core.errors import EngineDead
from tests.timeouts import TIMEOUT_S
from tests.zmtp import GREETING, NULL, OVERSIZED, deliver, ready

OTHER_USER = 65534
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
CONNECT = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for name in ("up", "down"):
    try:
        socket.socket(socket.AF_UNIX).connect(f"{sys.argv[1]}/{name}")
    except OSError as error:
        print(type(error).__name__)
    else:
        print("connected")
"""


@pytest.fixture
def channel() -> Iterator[Channel]:
    made = Channel.listen(Heartbeat)
    yield made
    made.close()


def assert_works(channel: Channel) -> None:
    """Assert that the child's messages are the next to arrive."""
    child = Channel.connect(channel.folder, Heartbeat)
    child.send(Heartbeat(7.0))
    assert channel.receive(TIMEOUT_S) == Heartbeat(7.0)
    channel.send(Heartbeat(8.0))
    assert child.receive(TIMEOUT_S) == Heartbeat(8.0)
    child.close()


def test_folder_of_the_sockets_is_of_its_user_only(channel: Channel) -> None:
    found = os.stat(channel.folder)
    assert stat.S_IMODE(found.st_mode) == 0o700
    assert found.st_uid == os.getuid()


@AS_ROOT
def test_another_user_cannot_connect(channel: Channel) -> None:
    child = Channel.connect(channel.folder, Heartbeat)  # both sockets exist
    command = [sys.executable, "-c", CONNECT, channel.folder]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, cwd="/"
    )
    assert done.stdout.split() == ["PermissionError"] * 2
    child.close()


@AS_ROOT
def test_child_refuses_a_folder_of_another_user(tmp_path: Path) -> None:
    os.chown(tmp_path, OTHER_USER, OTHER_USER)
    with pytest.raises(PermissionError, match="belongs to another user"):
        Channel.connect(str(tmp_path), Heartbeat)


@pytest.mark.parametrize(
    "attack",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(1000),
        GREETING + NULL + b"\x04\x05\x05READY",
        ready("DEALER") + b"\x00\x08" + bytes(8),
        ready("PUSH") + b"\x02" + OVERSIZED + bytes(1000),
    ],
    ids=["http", "zeros", "cut short", "wrong kind", "oversized"],
)
def test_bytes_of_no_peer_are_no_message(channel: Channel, attack: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(f"{channel.folder}/up")
        deliver(raw, attack)
        assert_works(channel)


@pytest.mark.parametrize("message", [b"", b"\xc1", b"garbage", b"\x81\xa4type\xa5Other"])
def test_message_of_another_kind_ends_the_channel_by_an_engine_error(
    channel: Channel, message: bytes
) -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as peer:
        peer.connect(f"ipc://{channel.folder}/up")
        peer.send(message)
        with pytest.raises(EngineDead, match="a message that it cannot read"):
            channel.receive(TIMEOUT_S)
