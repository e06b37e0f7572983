"""A plugin for `bench_pipeline.py`: devices that take a given time per stage, and `mp` in turns."""

from __future__ import annotations

import time
from typing import Annotated, Any

from builtin_plugins.executors.mp.executor import ProcessExecutor
from builtin_plugins.platforms.cpu.platform import CpuPlatform
from core.api import EngineConfig, Entry, Option, Range, hookimpl

Milliseconds = Annotated[float, Range(0, 1000)]


class FakeDevice(CpuPlatform):
    """A CPU with stages of `stage_ms`, and `token_ms` more for each token of the step."""

    name = "fake"

    def start(self, config: EngineConfig) -> None:
        """Read the times."""
        super().start(config)
        self._stage_s = config.options["stage_ms"] / 1e3
        self._token_s = config.options["token_ms"] / 1e3

    def wrap(self, model: Any, sizes: Any) -> Any:
        """Let the first layer take the time: after receiving, before sending."""

        def wait(block: Any, inputs: tuple[Any, ...]) -> None:
            time.sleep(self._stage_s + self._token_s * len(inputs[0]))

        model._blocks[0].register_forward_pre_hook(wait)
        return super().wrap(model, sizes)


class SerialExecutor(ProcessExecutor):
    """`mp` with one step in flight: every stage waits for all others."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.depth = 1


@hookimpl
def engine_platforms() -> list[Entry]:
    return [Entry("fake", FakeDevice, "a device with a given time per step")]


@hookimpl
def engine_executors() -> list[Entry]:
    return [Entry("serial", SerialExecutor, "one process per rank, one step in flight")]


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option("stage_ms", Milliseconds, 0.0, "Milliseconds of a stage for a step."),
        Option("token_ms", Milliseconds, 0.0, "Milliseconds of a stage for a token."),
    ]
