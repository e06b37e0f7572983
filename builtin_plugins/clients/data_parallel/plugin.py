"""Data parallelism: `--data-parallel-size` engines, each in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from core.api import Entry, Option, Range, hookimpl

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry
    from core.api.serving import Client, Listener


EXAMPLE_REQUESTS = [({"data_parallel_rank": 0}, "there", "there")]
"""Example requests of the conformance suite."""


@hookimpl
def engine_clients() -> list[Entry]:
    """Return the client; it serves two engines or more."""
    target = "builtin_plugins.clients.data_parallel.plugin:data_parallel_client"
    summary = "several engines in processes of their own; requests of a dead one move to others"
    when = {"data_parallel_size": range(2, 1025)}
    return [Entry("data_parallel", target, summary, priority=20, when=when)]


def data_parallel_client(config: EngineConfig, registry: Registry, listener: Listener) -> Client:
    """Start the engines, or connect an API server to the broker that has them."""
    from builtin_plugins.clients.broker.connection import broker_connection

    if (connect := broker_connection(registry)) is not None:
        return connect(config, registry, listener)
    from builtin_plugins.clients.data_parallel.client import DataParallelClient

    return DataParallelClient(config, registry, listener)


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig) -> None:
    from builtin_plugins.clients.ranks import local_ranks  # lazy: faster start-up

    local_ranks(config)


@hookimpl
def engine_admission_extensions(config: EngineConfig) -> list[Any]:
    # Imported lazily for a fast start.
    from builtin_plugins.clients.data_parallel.admission import EngineChoice
    from builtin_plugins.clients.ranks import local_ranks

    return [EngineChoice(local_ranks(config))]


@hookimpl
def engine_options() -> list[Option]:
    """Return which ranks this server has, how they are started, and whether they are bound."""
    rank = Annotated[int, Range(0, 1023)] | None
    return [
        Option(
            "data_parallel_external_lb",
            bool,
            False,
            "One server per rank, for a load balancer outside; needs --data-parallel-rank.",
        ),
        Option(
            "data_parallel_rank",
            rank,
            None,
            "Rank of the only engine of this server; implies --data-parallel-external-lb.",
        ),
        Option(
            "data_parallel_hybrid_lb",
            bool,
            False,
            "Several servers, each with --data-parallel-size-local engines, for a load "
            "balancer; with one engine each it is an external one.",
        ),
        Option(
            "data_parallel_start_rank",
            rank,
            None,
            "First rank of this server; implies --data-parallel-hybrid-lb.",
        ),
        Option(
            "data_parallel_size_local",
            Annotated[int, Range(1, 1024)] | None,
            None,
            "Number of engines on this machine, which share its cores and memory; default: all.",
        ),
        Option(
            "data_parallel_backend",
            str,
            "mp",
            "How the engines and their ranks are started: mp (by --launcher), or by the launcher "
            "of this name, such as ray.",
        ),
        Option(
            "data_parallel_cpu_binding",
            Literal["auto", "none"],
            "auto",
            "auto: several engines are bound each to its share of the cores, node by node.",
        ),
    ]
