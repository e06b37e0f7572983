"""Entry point of a process on another host: `python -P -m ...process.remote_child`.

The first line of standard input has the credentials as JSON. Launchers that run Python functions
themselves call `run_remote`.
"""

from __future__ import annotations

import os
import queue
import signal
import sys

import msgspec
import zmq

from builtin_plugins.executors.process.child import ParentChannel, run_role
from builtin_plugins.executors.process.messages import Start
from builtin_plugins.executors.process.tcp_channel import (
    Credentials,
    Hello,
    StageBegun,
    TcpChannel,
)


class RemoteParentChannel(TcpChannel, ParentChannel):
    """The child's end of a channel over TCP."""

    def stage(self, name: str) -> None:
        """Report the stage that begins."""
        self.stage_name = name
        self.send(StageBegun(name))


def run_remote(credentials: Credentials) -> int:
    """Run the role that the parent sends; return the exit status when its messages have left.

    The process exits if the connection to the parent is lost.
    """
    channel = RemoteParentChannel.connect_to(credentials, Start, lambda: os._exit(1))
    channel.input_lines = queue.SimpleQueue()
    channel.host = credentials.host
    channel.send(Hello(os.getpid(), credentials.host))
    status = run_role(channel)
    # sent messages have a second to arrive
    zmq.Context.instance().destroy(linger=1000)
    return status


def main() -> None:
    """Run the role of a parent; never returns."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # the parent decides when its child ends
        signal.signal(number, signal.SIG_IGN)
    credentials = msgspec.json.decode(sys.stdin.readline(), type=Credentials)
    status = run_remote(credentials)
    # threads stuck in a collective or a driver must not block the exit
    os._exit(status)


if __name__ == "__main__":
    main()
