"""Cores and thread priorities of this machine."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path
from typing import Final

from builtin_plugins.platforms.cgroup import cpu_quota


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores this process can use: affinity mask and
    CPU quota of its container.

    At least 1.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = cpu_quota(root)
    if quota is not None:
        cores = min(cores, math.ceil(quota))
    return max(1, cores)


BACKGROUND_NICENESS: Final = 10
"""Niceness of threads with work less urgent than steps."""


def lower_thread_priority() -> None:
    """Lower the priority of the calling thread below that of steps, if the
    system supports it.
    """
    if hasattr(os, "setpriority") and hasattr(threading, "get_native_id"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_NICENESS)
