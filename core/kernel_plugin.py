"""The plugin called `kernel`: the smallest entries without which no engine runs.

It cannot be left out.
"""

from __future__ import annotations

from core.plugin.entry import Entry, hookimpl


@hookimpl
def engine_clients() -> list[Entry]:
    """Give the client that needs no other process."""
    return [
        Entry(
            "thread",
            "core.engine.thread_client:ThreadClient",
            "the engine in a thread of this process",
            when={"data_parallel_size": range(2)},
        )
    ]


@hookimpl
def engine_executors() -> list[Entry]:
    """Give the executor that needs no other process."""
    return [
        Entry("uni", "core.engine.in_process_executor:UniExecutor", "the worker in this process")
    ]


@hookimpl
def engine_workers() -> list[Entry]:
    """Give the worker that runs any model of torch."""
    return [Entry("worker", "core.worker:Worker", "a model of torch, its cache and its rows")]


@hookimpl
def engine_quant_methods() -> list[Entry]:
    """Give the method of weights that are not quantized."""
    text = "weights as the checkpoint stores them"
    return [Entry("none", "core.models.layers.linear:PlainWeights", text)]
