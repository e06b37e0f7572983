"""Loads a hostile file in a process of its own, with limits of memory and processor time.

The processes are forks of one that has imported the engine, so that each costs little.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tests.timeouts import TIMEOUT_S

LOADING: Final = "tests.system.hostile_files.loading"
ADDRESS_SPACE_BYTES: Final = 6 << 30
CPU_S: Final = 60
"""Processor time after which a load counts as endless."""
MAX_RESIDENT_BYTES: Final = 1 << 30
"""Bound of the resident memory of a load; a good tiny checkpoint takes 0.45 GiB, torch included."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a load did."""

    status: str
    """"served", "refused" (an error that the engine raises on purpose), "raised" (any other)."""
    message: str = ""
    """The refusal, or the traceback of another exception."""
    seen_by_client: bool = False
    """Whether the message goes to a client of a server."""
    cpu_s: float = 0.0
    resident_bytes: int = 0


def load(way: str, folder: Path, options: dict[str, Any]) -> Outcome:
    """Return the outcome of a load. Raises `AssertionError` for a death or an endless load."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([LOADING])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, way, folder, options))
    process.start()
    sender.close()
    try:
        outcome: Outcome | None = receiver.recv() if receiver.poll(TIMEOUT_S) else None
    except EOFError:
        outcome = None
    process.join(TIMEOUT_S if outcome else 0)
    code = process.exitcode
    log = folder.parent / "log.txt"
    if code is None:
        process.kill()
        process.join()
    assert outcome is not None, f"no outcome, exit code {code}: {_tail(log)}"
    assert code == 0, f"{outcome.status}, and then exit code {code}: {_tail(log)}"
    return outcome


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:] if log.exists() else ""


def _run(sender: Connection, way: str, folder: Path, options: dict[str, Any]) -> None:
    log = os.open(folder.parent / "log.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
    status = "served"
    message = ""
    seen_by_client = False
    try:
        getattr(importlib.import_module(LOADING), way)(folder, options)
    except BaseException as error:  # noqa: BLE001 - panics of libraries derive from it
        from core.errors import EngineError, InvalidRequest

        refused = isinstance(error, EngineError)
        status = "refused" if refused else "raised"
        message = str(error) if refused else "".join(traceback.format_exception(error))
        seen_by_client = isinstance(error, InvalidRequest)
    used = resource.getrusage(resource.RUSAGE_SELF)
    sender.send(
        Outcome(
            status,
            message,
            seen_by_client,
            used.ru_utime + used.ru_stime,
            used.ru_maxrss * 1024,
        )
    )
    sender.close()
