"""Ranks as processes, and the experts of each."""

from __future__ import annotations

from typing import Any, Literal

from core.api import EngineConfig, Entry, Option, hookimpl


@hookimpl
def engine_executors() -> list[Entry]:
    """Return the executor."""
    target = "builtin_plugins.executors.mp.executor:ProcessExecutor"
    return [
        Entry(
            "mp",
            target,
            "one process per rank, on this machine or on --nnodes",
            requires=("pyzmq>=26",),
        )
    ]


@hookimpl
def engine_options() -> list[Option]:
    """Return the options of expert parallelism."""
    experts = (
        "Divide the experts of each layer among the tensor-parallel ranks, whole, instead of "
        "dividing every expert."
    )
    placement = (
        "Experts of a rank with --enable-expert-parallel: consecutive ones, or every n-th of n "
        "ranks."
    )
    strategies = Literal["linear", "round_robin"]
    return [
        Option("enable_expert_parallel", bool, False, experts),
        Option("expert_placement_strategy", strategies, "linear", placement),
    ]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig) -> None:
    # Imported lazily for a fast start.
    from builtin_plugins.executors.mp.expert_parallel import check_settings

    check_settings(config)


@hookimpl
def engine_scheduler_extensions(config: EngineConfig) -> list[Any]:
    # Imported lazily for a fast start.
    from builtin_plugins.executors.mp.expert_parallel import check_settings

    check_settings(config)  # with one rank, no executor of ranks reads it
    return []
