"""Cores and thread priorities of this machine."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path
from typing import Final


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of cores this process can use: affinity mask and
    container quota.

    At least 1.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    limit = cgroup / "cpu.max"
    if limit.exists():
        quota, period = limit.read_text().split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


BACKGROUND_NICENESS: Final = 10
"""Niceness of threads with work less urgent than steps."""


def lower_thread_priority() -> None:
    """Lower the priority of the calling thread below that of steps, if the
    system supports it.
    """
    if hasattr(os, "setpriority") and hasattr(threading, "get_native_id"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_NICENESS)
