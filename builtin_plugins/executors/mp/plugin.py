"""Ranks as processes of this machine."""

from core.api import Entry, hookimpl


@hookimpl
def engine_executors() -> list[Entry]:
    """Return the executor."""
    target = "builtin_plugins.executors.mp.executor:ProcessExecutor"
    return [Entry("mp", target, "one process per rank on this machine", requires=("pyzmq>=26",))]
