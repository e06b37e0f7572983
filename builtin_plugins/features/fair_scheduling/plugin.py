"""Fair scheduling: the option, and the halves in admission and scheduler."""

from __future__ import annotations

from typing import Annotated, Any

from core.api import EngineConfig, Option, Range, Registry, hookimpl

EXAMPLE_REQUESTS = [({"client": "a"}, "there", "there")]
"""Example requests of the conformance suite."""

CPU_ROWS = 8
"""Default number of shared rows on CPUs, where more rows slow every step down."""


@hookimpl
def engine_options() -> list[Option]:
    text = (
        "Rows that clients share evenly while several want some; "
        "default: --max-num-seqs, 8 on CPUs; 0: not shared."
    )
    return [Option("fair_rows", Annotated[int, Range(0, 1 << 24)] | None, None, text)]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    # Imported lazily for a fast start.
    from builtin_plugins.features.fair_scheduling.admission import Admission

    return [Admission()] if _shared_rows(config) else []


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    # Imported lazily for a fast start.
    from builtin_plugins.features.fair_scheduling.scheduling import FairScheduler

    rows = _shared_rows(config)
    return [FairScheduler(config.scheduler.max_num_seqs or 1, rows)] if rows else []


def _shared_rows(config: EngineConfig) -> int:
    """Return the number of shared rows; 0: fair scheduling is off."""
    requested: int | None = config.options.get("fair_rows")
    rows = config.scheduler.max_num_seqs or 1
    if requested is not None:
        return min(rows, requested)
    return min(rows, CPU_ROWS) if config.device.device == "cpu" else rows
