"""The launcher `nodes`, and the options of an engine on several hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from core.api import Entry, Option, Range, hookimpl

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry

NEEDS = ("nnodes",)


@hookimpl
def engine_launchers() -> list[Entry]:
    """Return the launcher."""
    target = "builtin_plugins.launchers.nodes.launcher:NodesLauncher"
    return [Entry("nodes", target, "processes of --nnodes hosts", requires=("pyzmq>=26",))]


@hookimpl
def engine_options() -> list[Option]:
    """Return where the nodes meet."""
    return [
        Option(
            "nnodes",
            Annotated[int, Range(1, 1024)],
            1,
            "Number of hosts (nodes) that the ranks are on, in equal shares.",
        ),
        Option(
            "node_rank",
            Annotated[int, Range(0, 1023)],
            0,
            "Number of this node; node 0, the head, serves.",
            needs=NEEDS,
        ),
        Option(
            "headless",
            bool,
            False,
            "Serve nothing: run this node's ranks for the head.",
            needs=NEEDS,
        ),
        Option(
            "master_addr",
            str,
            "127.0.0.1",
            "Address of the head, at which it listens.",
            needs=(*NEEDS, "launcher=nodes"),
        ),
        Option(
            "master_port",
            Annotated[int, Range(1, 65535)],
            29501,
            "Port at which nodes join the head.",
            needs=NEEDS,
        ),
        Option(
            "node_address",
            str | None,
            None,
            "This node's own address for the other ranks; default: that of its connection to the "
            "head.",
            needs=("headless",),
        ),
        Option(
            "node_key",
            str | None,
            None,
            "File with a secret of at least 32 bytes, equal on all nodes.",
            needs=NEEDS,
        ),
        Option(
            "node_timeout",
            Annotated[float, Range(1, 86400)],
            300.0,
            "Seconds that the head waits for its nodes, and a node at its start for the head.",
            needs=NEEDS,
        ),
    ]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    """Raise `ConfigError` for an engine that cannot run on several nodes."""
    from builtin_plugins.launchers.nodes.settings import check_nodes  # lazy: needs ZeroMQ

    del registry
    check_nodes(config)
    return []
