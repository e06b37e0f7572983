"""A plugin for tests: the variable FAULT says which process ("*": every one) does what, and when.

`FAULT="worker 1:forward:kill"`. Moments in a step are those that compute the token `TRIGGER`.
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
    who, when, deed = os.environ.get("FAULT", "nobody:never:nothing").split(":")
    if when != moment or who not in ("*", *_process):
        return
    if deed == "raise":
        raise ValueError("broken on purpose")
    if deed == "exit":
        os._exit(3)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}[deed])
