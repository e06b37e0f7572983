"""Fair waiting. Imports neither torch nor ZeroMQ."""

from core.frontend.fair_semaphore import FairSemaphore

__all__ = ["FairSemaphore"]
