"""The process that keepers are forked from: it has read the vocabulary and loaded a backend, and
does nothing risky itself.

What it has is shared with its keepers as long as neither writes to it, so a keeper starts in
milliseconds and costs what it makes itself. A keeper ends with its zygote, and the zygote with the
process that started it.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from builtin_plugins.features.structured_outputs.keeper import Keeper, board_bytes, board_of, keep
from builtin_plugins.features.structured_outputs.messages import ToKeeper
from builtin_plugins.features.structured_outputs.tools import Tools
from builtin_plugins.features.structured_outputs.wire import Wire
from core.process.messages import Start

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.process.child import ParentChannel

WARM: Final = struct.Struct("<I")
"""What the zygote says once, when it is ready: words of a mask."""
NAME: Final = "engine-grammars"
"""What the system's list of processes shows, of its keepers too."""
_PR_SET_PDEATHSIG: Final = 1
_SPARE: Final = 1.25
"""A keeper beyond its memory is found and told so; one that takes it faster than that is refused
more at so many times it.
"""


class Meet(msgspec.Struct, frozen=True, tag=True):
    """Where the process that started this one listens for it."""

    name: str


def run(start: Start, registry: Any, channel: ParentChannel) -> None:
    """Fork a keeper for each pair of socket and memory that comes, until no more can come."""
    Path("/proc/self/comm").write_text(NAME)
    channel.expect(Meet)
    meet: Meet = channel.receive()
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect(f"\0{meet.name}")
    channel.stage("reading the vocabulary for grammars")
    tools = Tools(start.config, registry)
    tools.warm_up()
    num_words = len(tools.masks.ends)
    die_with: Callable[..., int] = ctypes.CDLL(None).prctl
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    gc.collect()
    gc.freeze()  # the collector of a keeper would write to all that is shared
    control.send(WARM.pack(num_words))
    own = os.getpid()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not data:
            return
        if os.fork() == 0:
            _serve(tools, num_words, descriptors, own, die_with)
        for descriptor in descriptors:
            os.close(descriptor)


def _serve(
    tools: Tools, num_words: int, descriptors: list[int], parent: int, die_with: Callable[..., int]
) -> None:
    """Be a keeper; never returns."""
    status = 1
    try:
        die_with(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        link, memory = descriptors
        board = board_of(mmap.mmap(memory, board_bytes(num_words)), num_words)
        os.closerange(3, link)
        os.closerange(link + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        _limit(tools.settings.compile_memory_bytes)
        wire: Wire[ToKeeper] = Wire(socket.socket(fileno=link), ToKeeper)
        keep(wire, Keeper(tools, board), os.getpid())
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is must not reach the zygote's own code below
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _limit(most_bytes: int) -> None:
    """Refuse this process more memory than it may have beside what it shares."""
    with open("/proc/self/status") as file:
        held = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData:"))
    most = held + int(_SPARE * most_bytes)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
