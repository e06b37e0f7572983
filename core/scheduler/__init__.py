"""Which request computes which tokens in the next step, and what its results mean. Torch-free."""

from core.scheduler.journal import Journal
from core.scheduler.lifecycle import Counters
from core.scheduler.limits import SchedulerLimits
from core.scheduler.scheduler import Scheduler

__all__ = ["Counters", "Journal", "Scheduler", "SchedulerLimits"]
