"""Ranks as processes."""

from core.api import Entry, hookimpl


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
