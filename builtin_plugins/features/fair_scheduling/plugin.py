"""Rows are shared evenly among clients while several of them want some: the option, and the halves
at the edge and beside
the scheduler.
"""

from __future__ import annotations

from typing import Annotated, Any

from core.api import EngineConfig, Option, Within, hookimpl

EXAMPLE_REQUESTS = [({"client": "a"}, "there", "there")]
"""What the conformance suite gives."""


@hookimpl
def engine_options() -> list[Option]:
    text = "Rows that clients share evenly while several want some; default: --max-num-seqs, 8 on CPUs; 0: not shared."
    return [Option("fair_rows", Annotated[int, Within(0, 1 << 24)] | None, None, text)]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    from builtin_plugins.features.fair_scheduling.admission import (
        Admission,  # lazy: start-up stays quick
    )

    return [Admission()] if _rows(config) else []


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    from builtin_plugins.features.fair_scheduling.scheduling import (
        Shares,  # lazy: start-up stays quick
    )

    rows = _rows(config)
    return [Shares(config.scheduler.max_num_seqs or 1, rows)] if rows else []


CPU_ROWS = 8
"""Beyond about so many, every row makes a CPU's steps longer for all others."""


def _rows(config: EngineConfig) -> int:
    """Return how many rows are shared; 0: none."""
    wanted: int | None = config.options.get("fair_rows")
    rows = config.scheduler.max_num_seqs or 1
    if wanted is None:
        return min(rows, CPU_ROWS) if config.device.device == "cpu" else rows
    return min(rows, wanted)
