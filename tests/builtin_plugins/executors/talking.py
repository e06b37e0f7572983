"""A plugin for tests: workers that send payloads in steps, outside of steps, and as answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core.api import EngineConfig, Entry, InvalidRequest, hookimpl
from core.api.execution import Pending, StepPlan, StepResult

received: list[bytes] = []
"""Payloads received by the scheduler half."""

_process: list[str] = []


@hookimpl
def engine_process_start(process: str) -> None:
    _process[:] = [process]


@hookimpl
def engine_workers() -> list[Entry]:
    return [Entry("talking", SendingWorker, "a worker that sends payloads", priority=10)]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig) -> list[Any]:
    return [Receiver()]


class Receiver:
    name = "talk"

    def result(self, payload: bytes) -> None:
        received.append(payload)


class PendingWithPayload:
    """A pending step result with a payload of this rank."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    def get(self) -> StepResult:
        result = self._pending.get()
        result.payloads["talk"] = [_process[0].encode()]
        return result


class SendingWorker:
    reports = True

    def __init__(self, config: EngineConfig, registry: Any, *rest: Any) -> None:
        self._inner = registry.load(registry.choose("workers", "worker"))(config, registry, *rest)
        self.on_message: Callable[[str, bytes], None] = lambda name, data: None
        self.start = self._inner.start
        self.close = self._inner.close

    def allocate(self, *arguments: Any) -> None:
        self.on_message("talk", f"{_process[0] if _process else 'alone'} allocates".encode())
        self._inner.allocate(*arguments)

    def execute(self, plan: StepPlan) -> PendingWithPayload:
        self.on_message("talk", f"{_process[0]} runs {plan.step}".encode())
        return PendingWithPayload(self._inner.execute(plan))

    def call(self, name: str, data: bytes) -> bytes | None:
        if name == "talk.refuse" or (name == "talk.split" and _process == ["worker 1"]):
            raise InvalidRequest("data", f"{_process[0][:6]} takes no {data.decode()}.")
        return (
            _process[0].encode() + data if name == "talk.echo" or _process == ["worker 0"] else None
        )
