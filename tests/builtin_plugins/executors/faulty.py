"""A plugin for tests: the variable FAULT names a process ("*": all), a moment and an action.

`FAULT="worker 1:forward:kill"`. Faults in a step happen when it computes the token `TRIGGER`.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from core.api import EngineConfig, hookimpl

TRIGGER = 250

_process: list[str] = []


@hookimpl
def engine_process_start(process: str) -> None:
    _process[:] = [process]
    fault("start")


@hookimpl
def engine_runner_extensions(config: EngineConfig) -> list[Any]:
    return [Faulty()]


class Faulty:
    name = "faulty"

    def before_forward(self, batch: Any, payload: bytes | None) -> None:
        self.triggered = TRIGGER in batch.input_ids.tolist()
        if self.triggered:
            fault("forward")

    def before_sample(self, logits: Any, rows: Any, payload: bytes | None) -> Any:
        if self.triggered:
            fault("sample")
        return logits


def fault(moment: str) -> None:
    process, when, action = os.environ.get("FAULT", "none:never:nothing").split(":")
    if when != moment or process not in ("*", *_process):
        return
    if action == "raise":
        raise ValueError("broken on purpose")
    if action == "exit":
        os._exit(3)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}[action])
