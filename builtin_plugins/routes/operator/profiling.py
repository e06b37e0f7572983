"""Profiles of steps with torch's profiler, one file per rank: `/start_profile`, `/stop_profile`,
and methods of `LLM`.

`--profiler-config` names the folder, with vLLM's keys.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import msgspec

from core.api import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from torch.profiler import profile

    from core.api.execution import WorkerParts

log = logging.getLogger(__name__)

NAME: Final = "profiling"
OPTION: Final = "profiler_config"
FLAG: Final = "--profiler-config"
Count = Annotated[int, msgspec.Meta(ge=0)]


class Settings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`--profiler-config`."""

    profiler: Any = "torch"
    torch_profiler_dir: Annotated[str, msgspec.Meta(min_length=1)]
    torch_profiler_with_stack: bool = True
    torch_profiler_with_flops: bool = False
    torch_profiler_use_gzip: bool = True
    torch_profiler_record_shapes: bool = False
    torch_profiler_with_memory: bool = False
    torch_profiler_dump_cuda_time_total: bool = True
    """Log the sums of times by op."""
    ignore_frontend: bool = True
    """The API process is never profiled."""
    delay_iterations: Count = 0
    """Steps to skip after the start."""
    max_iterations: Count = 0
    """Largest number of profiled steps; 0: until the stop."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self | None:
        """Return the settings, or None without any. Raises `ConfigError`."""
        if not given or given.get("profiler", "torch") is None:
            return None
        for key, expected in (("profiler", "torch"), ("ignore_frontend", True)):
            if given.get(key, expected) != expected:
                raise ConfigError(
                    f"{FLAG}.{key}: got {given[key]!r:.80}; expected {expected!r}. Remove it."
                )
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            text, _, path = str(error).partition(" - at `$")
            raise ConfigError(
                f"{FLAG}{path.rstrip('`')}: {text[:1].lower()}{text[1:]}. Give at least "
                "torch_profiler_dir, a folder for traces."
            ) from error


def start_profile(llm: Any) -> None:
    """Start the profiler of all ranks. Raises `InvalidRequest` without `profiler_config`."""
    _call(llm, "start")


def stop_profile(llm: Any) -> list[str]:
    """Stop the profiler; return the trace files of the ranks."""
    return [answer["file"] for answer in _call(llm, "stop") if answer.get("file")]


def _call(llm: Any, verb: str) -> list[dict[str, str]]:
    if Settings.of(llm.config.options.get(OPTION) or {}) is None:
        raise InvalidRequest(
            OPTION, "is not set; make the LLM with profiler_config={'torch_profiler_dir': DIR}."
        )
    answers = [json.loads(answer) for answer in llm.collective_rpc(f"{NAME}.{verb}")]
    for answer in answers:
        if "error" in answer:
            raise InvalidRequest(OPTION, f"{answer['error']}.")
    return answers


class StepProfiler:
    """Profiler of one rank. Calls return JSON: the file, or an error."""

    name = NAME

    def __init__(self, settings: Settings, engine: int | None = None) -> None:
        """`engine`: rank of the engine if there are several; files are named by it."""
        self._settings = settings
        self._prefix = "" if engine is None else f"engine{engine}."
        self._rank = 0
        self._profile: profile | None = None
        self._is_requested = False
        self._steps = 0
        """Number of steps since the start."""

    def attach(self, parts: WorkerParts) -> None:
        """Store the rank."""
        self._rank = parts.pipeline.rank * parts.group.size + parts.group.rank

    def begin(self, payload: bytes | None) -> None:
        """Count steps; start after the skipped ones, and stop after the last one."""
        if not self._is_requested:
            return
        self._steps += 1
        settings = self._settings
        if self._profile is None and self._steps > settings.delay_iterations:
            self._start()
        elif (
            settings.max_iterations
            and self._steps > settings.delay_iterations + settings.max_iterations
        ):
            log.info("profile written to %s", self._stop())

    def call(self, verb: str, data: bytes) -> bytes | None:
        """Handle `start` and `stop`."""
        if verb not in ("start", "stop"):
            return None
        if verb == "start":
            answer = self._start_requested()
        elif not self._is_requested:
            answer = {
                "error": "no profile is under way; /start_profile begins one, and "
                "--profiler-config may have ended it"
            }
        else:
            answer = {"file": self._stop()}
        return json.dumps(answer).encode()

    def close(self) -> None:
        """Write the profile when the engine ends."""
        if self._is_requested:
            self._stop()

    def _start_requested(self) -> dict[str, str]:
        if self._is_requested:
            return {"error": "a profile is under way; /stop_profile ends it"}
        self._is_requested = True
        self._steps = 0
        if not self._settings.delay_iterations:
            self._start()
        return {}

    def _start(self) -> None:
        from torch._C._profiler import (
            _ExperimentalConfig,
        )  # steps may run in another thread than calls
        from torch.profiler import ProfilerActivity, profile  # lazy: only a profile needs it

        settings = self._settings
        self._profile = profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=settings.torch_profiler_record_shapes,
            profile_memory=settings.torch_profiler_with_memory,
            with_stack=settings.torch_profiler_with_stack,
            with_flops=settings.torch_profiler_with_flops,
            experimental_config=_ExperimentalConfig(profile_all_threads=True),
        )
        self._profile.start()

    def _stop(self) -> str:
        """Stop, and return the written file; empty if no step was profiled."""
        stopped = self._profile
        self._profile = None
        self._is_requested = False
        if stopped is None:
            return ""
        stopped.stop()
        suffix = ".gz" if self._settings.torch_profiler_use_gzip else ""
        folder = Path(self._settings.torch_profiler_dir)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self._prefix}rank{self._rank}.{time.time_ns()}.pt.trace.json{suffix}"
        stopped.export_chrome_trace(str(path))
        if self._settings.torch_profiler_dump_cuda_time_total:
            sums = stopped.key_averages().table(sort_by="self_cpu_time_total", row_limit=20)
            log.info("%s", sums)
        return str(path)
