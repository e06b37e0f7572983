"""Cores, GPUs, thread priorities and container limits, with the promises of `core.api`."""

from builtin_plugins.platforms.cgroup import (
    cpu_quota,
    memory_limit_bytes,
    oom_kill_count,
    tightest_memory_limit,
)
from builtin_plugins.platforms.devices import ALLOW_EQUAL_NUMBERS, VISIBLE_GPUS, visible_gpus
from builtin_plugins.platforms.machine import lower_thread_priority, usable_cores

__all__ = [
    "ALLOW_EQUAL_NUMBERS",
    "VISIBLE_GPUS",
    "cpu_quota",
    "lower_thread_priority",
    "memory_limit_bytes",
    "oom_kill_count",
    "tightest_memory_limit",
    "usable_cores",
    "visible_gpus",
]
