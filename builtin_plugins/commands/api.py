"""What commands promise to others: memory plans, and what Python scripts need of the command line:
a parser of flags, and the benchmarks.
"""

from __future__ import annotations

from builtin_plugins.commands.bench.scripts import bench_latency, bench_serve, bench_throughput
from builtin_plugins.commands.flexible_parser import FlexibleArgumentParser
from builtin_plugins.commands.plan.memory_plan import MemoryPlan, memory_plan

__all__ = [
    "FlexibleArgumentParser",
    "MemoryPlan",
    "bench_latency",
    "bench_serve",
    "bench_throughput",
    "memory_plan",
]
