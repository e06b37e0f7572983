"""The scheduler: which request computes which tokens in each step. Torch-free."""

from core.scheduler.lifecycle import Counters
from core.scheduler.limits import SchedulerLimits
from core.scheduler.scheduler import Scheduler

__all__ = ["Counters", "Scheduler", "SchedulerLimits"]
