"""Which rank runs on which node: nodes have equal numbers of ranks, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builtin_plugins.launchers.selection import NNODES

if TYPE_CHECKING:
    from core.api import EngineConfig


def num_nodes(config: EngineConfig) -> int:
    """Return `--nnodes`."""
    count: int = config.options.get(NNODES, 1)
    return count


def ranks_per_node(config: EngineConfig) -> int:
    """Return the number of ranks of one engine that share a host."""
    parallel = config.parallel
    size = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    return max(1, size // num_nodes(config))


def node_of(rank: int, group_size: int, nodes: int) -> int:
    """Return the node of a process in a launch group; a process alone runs on the head."""
    return rank * nodes // group_size if group_size > 1 else 0
