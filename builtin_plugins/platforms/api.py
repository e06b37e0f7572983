"""Cores and thread priorities, with the promises of `core.api`."""

from builtin_plugins.platforms.machine import lower_thread_priority, usable_cores

__all__ = ["lower_thread_priority", "usable_cores"]
