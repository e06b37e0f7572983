"""Threads of plugins that work beside the steps."""

from __future__ import annotations

import os
import threading
from typing import Final

BESIDE_NICENESS: Final = 10
"""Of threads whose work can wait a little: steps come first."""


def step_aside() -> None:
    """Let steps have the cores before the thread that calls this, where the system knows threads'
    niceness.
    """
    if hasattr(os, "setpriority") and hasattr(threading, "get_native_id"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BESIDE_NICENESS)
