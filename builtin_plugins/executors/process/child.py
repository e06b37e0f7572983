"""Entry point of every subprocess: `python -P -m builtin_plugins.executors.process.child FOLDER
HOME STAGES`.
"""

from __future__ import annotations

import importlib
import os
import queue
import shutil
import signal
import sys
import threading
import traceback
from typing import Any

import msgspec
import zmq

from builtin_plugins.executors.process.channel import Channel
from builtin_plugins.executors.process.messages import Connected, Failed, Start
from builtin_plugins.executors.process.spawn import FIRST_STAGE, HOME
from core.api import EngineError
from core.api.plugins import load_plan
from core.api.serving import setup_logging


class ParentChannel(Channel):
    """The child's end of the channel, with the current start-up stage."""

    stage_name = FIRST_STAGE
    host = ""
    """This process's address for other ranks; empty if they run on this machine."""
    stages: int
    """File descriptor of the pipe for stages; it delivers even the stage of
    an instant crash.
    """
    input_lines: queue.SimpleQueue[str]
    """Lines of standard input: the folder of a new parent, or an empty line
    after the old one's death.
    """

    def expect(self, kinds: Any) -> None:
        """Set the messages that follow the first one: a union of structs."""
        self._decoder = msgspec.msgpack.Decoder(kinds)

    def stage(self, name: str) -> None:
        """Report the stage that begins."""
        self.stage_name = name
        os.write(self.stages, f"{name}\n".encode())


def main(address: str, home: str, stages: str) -> None:
    """Run the role in the parent's first message; never returns.

    `home` is the folder of the parent's `core` package.
    """
    if home != HOME:
        sys.exit(
            f"engine: the code in {home} has started a process that finds the one in {HOME}; "
            "install one of them."
        )
    for number in (signal.SIGINT, signal.SIGTERM):
        # the parent decides when its child ends
        signal.signal(number, signal.SIG_IGN)
    channel = ParentChannel.connect(address, Start)
    channel.stages = int(stages)
    channel.input_lines = queue.SimpleQueue()
    threading.Thread(target=_end_with_parent, args=(channel,), name="lifeline", daemon=True).start()
    status = run_role(channel)
    # sent messages have a second to arrive
    zmq.Context.instance().destroy(linger=1000)
    # threads stuck in a collective or a driver must not block the exit
    os._exit(status)


def run_role(channel: ParentChannel) -> int:
    """Run the role in the parent's first message, and close the channel; return the exit status.

    An exception is reported to the parent.
    """
    status = 0
    process = "?"
    try:
        start: Start = channel.receive()
        channel.send(Connected())
        process = start.process
        _run(start, channel)
    except BaseException as error:  # noqa: BLE001 - reported to the parent
        status = 1
        if not isinstance(error, EngineError):
            traceback.print_exc()
        channel.send(
            Failed(
                process=process,
                stage=channel.stage_name,
                kind=type(error).__name__,
                message=str(error),
            )
        )
    finally:
        channel.close()
        sys.stdout.flush()
        sys.stderr.flush()
    return status


def _run(start: Start, channel: ParentChannel) -> None:
    sys.path += [folder for folder in start.sys_path if folder not in sys.path]
    observability = start.config.observability
    setup_logging(start.log_level, log_format=observability.log_format, process=start.process)
    channel.stage("loading the plugins")
    registry = load_plan(start.plan, start.process)
    registry.process_started(start.process)
    module, _, function = start.target.partition(":")
    channel.stage(f"importing {module}")
    getattr(importlib.import_module(module), function)(start, registry, channel)


def _end_with_parent(channel: ParentChannel) -> None:
    """Exit at the end of standard input, which is the parent's end, and
    remove its folder.
    """
    while line := sys.stdin.readline():
        channel.input_lines.put(line.strip())
    shutil.rmtree(channel.folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
