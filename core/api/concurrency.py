"""Cores, thread priorities and fair waiting.

Imports neither torch nor ZeroMQ.
"""

from core.process.concurrency import FairSemaphore, lower_thread_priority, usable_cores

__all__ = ["FairSemaphore", "lower_thread_priority", "usable_cores"]
