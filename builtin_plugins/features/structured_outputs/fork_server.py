"""The process that forks grammar processes, after it has read the vocabulary and a backend.

Its memory is shared with the forks until either writes to it. So a grammar process starts in
milliseconds and only costs what it allocates. It ends with the fork server, which ends with the
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
from typing import TYPE_CHECKING, Final

import msgspec

from builtin_plugins.executors.api import Start
from builtin_plugins.features.structured_outputs.grammar_process import (
    GrammarProcess,
    mask_buffer,
    mask_buffer_bytes,
    serve_grammar,
)
from builtin_plugins.features.structured_outputs.grammar_protocol import ToGrammar, Wire
from builtin_plugins.features.structured_outputs.resources import GrammarResources

if TYPE_CHECKING:
    from collections.abc import Callable

    from builtin_plugins.executors.api import ParentChannel
    from core.api import Registry

WARM: Final = struct.Struct("<I")
"""The message sent once the fork server is ready: number of words of a mask."""
NAME: Final = "engine-grammars"
"""Process name of the fork server and of its forks."""
_PR_SET_PDEATHSIG: Final = 1
_MEMORY_MARGIN: Final = 1.25
"""Hard memory limit as a multiple of the budget, for processes that outrun the watcher."""


class Handshake(msgspec.Struct, frozen=True, tag=True):
    """Name of the socket on which the starting process listens."""

    name: str


def run(start: Start, registry: Registry, channel: ParentChannel) -> None:
    """Fork a grammar process for each received pair of socket and memory."""
    Path("/proc/self/comm").write_text(NAME)
    channel.expect(Handshake)
    handshake: Handshake = channel.receive()
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect(f"\0{handshake.name}")
    channel.stage("reading the vocabulary for grammars")
    resources = GrammarResources(start.config, registry)
    resources.warm_up()
    num_words = len(resources.masks.ends)
    die_with: Callable[..., int] = ctypes.CDLL(None).prctl
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the forks are not waited for
    gc.collect()
    gc.freeze()  # a fork's garbage collector would write to the shared memory
    control.send(WARM.pack(num_words))
    own = os.getpid()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not data:
            return
        if os.fork() == 0:
            _serve(resources, num_words, descriptors, own, die_with)
        for descriptor in descriptors:
            os.close(descriptor)


def _serve(
    resources: GrammarResources,
    num_words: int,
    descriptors: list[int],
    parent: int,
    die_with: Callable[..., int],
) -> None:
    """Run a grammar process; never returns."""
    status = 1
    try:
        die_with(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        link, memory = descriptors
        buffer = mask_buffer(mmap.mmap(memory, mask_buffer_bytes(num_words)), num_words)
        os.closerange(3, link)
        os.closerange(link + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        _limit_memory(resources.settings.compile_memory_bytes)
        wire: Wire[ToGrammar] = Wire(socket.socket(fileno=link), ToGrammar)
        serve_grammar(wire, GrammarProcess(resources, buffer), os.getpid())
        status = 0
    except BaseException:  # noqa: BLE001 - no exception may reach the fork server's own code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _limit_memory(budget_bytes: int) -> None:
    """Limit the memory of this process beyond what it shares."""
    with open("/proc/self/status") as file:
        held = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData:"))
    limit = held + int(_MEMORY_MARGIN * budget_bytes)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
