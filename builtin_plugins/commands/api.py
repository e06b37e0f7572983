"""What commands promise to others: memory plans, and what Python scripts need of the command line:
a parser of flags, and the benchmarks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.flexible_parser import FlexibleArgumentParser

if TYPE_CHECKING:
    from builtin_plugins.commands.bench.scripts import bench_latency, bench_serve, bench_throughput
    from builtin_plugins.commands.plan.memory_plan import MemoryPlan, memory_plan

__all__ = [
    "FlexibleArgumentParser",
    "MemoryPlan",
    "bench_latency",
    "bench_serve",
    "bench_throughput",
    "memory_plan",
]
BENCHMARKS: Final = "builtin_plugins.commands.bench.scripts"
PLAN: Final = "builtin_plugins.commands.plan.memory_plan"
LAZY: Final = {
    "MemoryPlan": PLAN,
    "bench_latency": BENCHMARKS,
    "bench_serve": BENCHMARKS,
    "bench_throughput": BENCHMARKS,
    "memory_plan": PLAN,
}
"""Modules that import torch, by name: a script that needs the parser alone waits for none."""


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(LAZY[name]), name)
