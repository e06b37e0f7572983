"""What commands promise to others: the memory plan of a configuration."""

from __future__ import annotations

from builtin_plugins.commands.plan.memory_plan import MemoryPlan, memory_plan

__all__ = ["MemoryPlan", "memory_plan"]
