"""The worker half of `/start_profile` and `/stop_profile`: torch's profiler over a rank's steps,
written as a file per rank.

`--profiler-config` names the folder; keys are vLLM's. Looks at each step only to count those that
are left out or profiled.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

import msgspec

from core.api import ConfigError

if TYPE_CHECKING:
    from torch.profiler import profile

    from core.contracts.scheduling import WorkerParts

log = logging.getLogger(__name__)

NAME: Final = "profiling"
Count = Annotated[int, msgspec.Meta(ge=0)]


class Settings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`--profiler-config`."""

    profiler: Literal["torch"] = "torch"
    torch_profiler_dir: Annotated[str, msgspec.Meta(min_length=1)]
    torch_profiler_with_stack: bool = True
    torch_profiler_with_flops: bool = False
    torch_profiler_use_gzip: bool = True
    torch_profiler_record_shapes: bool = False
    torch_profiler_with_memory: bool = False
    torch_profiler_dump_cuda_time_total: bool = True
    """Accepted: the sums by op are in the log in any case."""
    ignore_frontend: bool = True
    """Accepted: the serving process is not profiled."""
    delay_iterations: Count = 0
    """Steps that are left out after the start."""
    max_iterations: Count = 0
    """Steps that are profiled at most; 0: until the stop."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self | None:
        """Return the settings, None where there are none. Raises `ConfigError` for what is none."""
        if not given or given.get("profiler", "torch") is None:
            return None
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"--profiler-config: {error}; give torch_profiler_dir, a folder for traces."
            ) from error


class Profiling:
    """One rank's profiler. Answers calls with JSON: the file that was written, or what was wrong."""

    name = NAME

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rank = 0
        self._profile: profile | None = None
        self._wanted = False
        self._steps = 0
        """Since the start."""

    def attach(self, parts: WorkerParts) -> None:
        """Take this rank's number."""
        self._rank = parts.pipeline.rank * parts.group.size + parts.group.rank

    def begin(self, payload: bytes | None) -> None:
        """Start where steps were to be left out first, and stop after as many as are wanted."""
        if not self._wanted:
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
        """Answer `start` and `stop`."""
        if verb not in ("start", "stop"):
            return None
        if verb == "start":
            told = self._begin_asked()
        elif not self._wanted:
            told = {
                "error": "no profile is under way; /start_profile begins one, and "
                "--profiler-config may have ended it"
            }
        else:
            told = {"file": self._stop()}
        return json.dumps(told).encode()

    def close(self) -> None:
        """Write what there is when the engine ends."""
        if self._wanted:
            self._stop()

    def _begin_asked(self) -> dict[str, str]:
        if self._wanted:
            return {"error": "a profile is under way; /stop_profile ends it"}
        self._wanted = True
        self._steps = 0
        if not self._settings.delay_iterations:
            self._start()
        return {}

    def _start(self) -> None:
        from torch._C._profiler import (
            _ExperimentalConfig,
        )  # steps may run in another thread than calls
        from torch.profiler import ProfilerActivity, profile  # lazy: nobody else needs it

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
        """Return the file that was written; empty where no step has been profiled."""
        stopped = self._profile
        self._profile = None
        self._wanted = False
        if stopped is None:
            return ""
        stopped.stop()
        suffix = ".gz" if self._settings.torch_profiler_use_gzip else ""
        folder = Path(self._settings.torch_profiler_dir)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank{self._rank}.{time.time_ns()}.pt.trace.json{suffix}"
        stopped.export_chrome_trace(str(path))
        log.info("%s", stopped.key_averages().table(sort_by="self_cpu_time_total", row_limit=20))
        return str(path)
