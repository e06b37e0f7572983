"""Fair waiting. Imports neither torch nor ZeroMQ."""

from core.process.concurrency import FairSemaphore

__all__ = ["FairSemaphore"]
