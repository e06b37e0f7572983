"""The contract of launchers, and how to find the chosen one; as stable as `core.api`."""

import importlib
from typing import TYPE_CHECKING, Any

from builtin_plugins.launchers.contract import ChildProcess, Group, Launcher
from builtin_plugins.launchers.nodes.layout import num_nodes, ranks_per_node
from builtin_plugins.launchers.selection import (
    OPTION,
    is_local,
    is_on_this_host,
    launcher_of_ranks,
    make_launcher,
)

if TYPE_CHECKING:
    from builtin_plugins.launchers.nodes.node import run_node

__all__ = [
    "OPTION",
    "ChildProcess",
    "Group",
    "Launcher",
    "is_local",
    "is_on_this_host",
    "launcher_of_ranks",
    "make_launcher",
    "num_nodes",
    "ranks_per_node",
    "run_node",
]


def __getattr__(name: str) -> Any:
    """Import what needs ZeroMQ when it is first used."""
    if name != "run_node":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("builtin_plugins.launchers.nodes.node").run_node
