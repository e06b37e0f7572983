"""Autotuning: launch configurations per kernel and shape, measured once per kind of device and
cached on disk.

All configurations add the same tiles in the same order; only the device's order within a tile may
differ. Files are stored in the Triton cache (`TRITON_CACHE_DIR`), one per shape, so concurrent
processes do not conflict.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import torch
import triton
from triton.runtime.errors import OutOfResources

from core_kernels.triton.launching import INTERPRETED, MIN_DOT_SIZE, next_power_of_2

MAX_BUCKET_ROWS: Final = 1024
"""Row counts up to this have one bucket per power of two."""
REPEATS: Final = 7
FLUSHED_BYTES: Final = 64 << 20
"""Bytes written before each timed launch, so that no weight is in a cache."""

Shape = tuple[int | str, ...]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """A launch configuration."""

    columns: int
    """Output columns per program."""
    warps: int
    stages: int


LAUNCH_CONFIGS: Final = (
    LaunchConfig(64, 4, 3),
    LaunchConfig(32, 4, 4),
    LaunchConfig(64, 8, 4),
    LaunchConfig(128, 8, 3),
)
"""Configurations of GEMM kernels; the first fits every device."""


class Clock(Protocol):
    """Times launches."""

    def device_name(self, device: torch.device) -> str | None:
        """Return the kind of the device; None: timing is not possible now."""

    def seconds(self, device: torch.device, launch: Callable[[], object]) -> float:
        """Return the time of a launch; infinity if the device lacks resources for it."""


class DeviceClock:
    """Clock of CUDA devices."""

    def device_name(self, device: torch.device) -> str | None:
        """Return its name; None in the interpreter and during graph capture."""
        if INTERPRETED or device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return None
        name: str = torch.cuda.get_device_name(device)
        return name

    def seconds(self, device: torch.device, launch: Callable[[], object]) -> float:
        """Return the median of several launches after the one that compiles."""
        scratch = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device=device)
        taken: list[float] = []
        try:
            launch()
            for _ in range(REPEATS):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                scratch.zero_()
                begin.record()
                launch()
                end.record()
                end.synchronize()
                taken.append(begin.elapsed_time(end) / 1000)
        except OutOfResources:
            return math.inf
        return statistics.median(taken)


class Autotuner:
    """The autotuned configurations of a kernel; the first one if timing is not possible.

    One per kernel and process.
    """

    def __init__(
        self,
        kernel: str,
        configs: Sequence[LaunchConfig] = LAUNCH_CONFIGS,
        clock: Clock | None = None,
        folder: Path | None = None,
    ) -> None:
        self.configs: Final = tuple(configs)
        self._kernel: Final = kernel
        self._clock: Final = DeviceClock() if clock is None else clock
        self._folder: Final = folder
        self._found: Final[dict[tuple[torch.device, Shape], LaunchConfig]] = {}
        self._keeps = True

    def launch(
        self, device: torch.device, shape: Shape, launch: Callable[[LaunchConfig], object]
    ) -> None:
        """Launch with the configuration of this shape.

        For a new shape `launch` is called repeatedly and must write the same result each time.
        """
        chosen = self._found.get((device, shape))
        if chosen is None:
            name = self._clock.device_name(device)
            if name is None:
                chosen = self.configs[0]
            else:
                chosen = self._found[device, shape] = self._look_up(name, device, shape, launch)
        launch(chosen)

    def _look_up(
        self,
        name: str,
        device: torch.device,
        shape: Shape,
        launch: Callable[[LaunchConfig], object],
    ) -> LaunchConfig:
        file = self._file(name, shape)
        cached = self._read(file)
        if cached is not None:
            return cached
        seconds = [self._clock.seconds(device, partial(launch, config)) for config in self.configs]
        chosen = self.configs[seconds.index(min(seconds))]
        logger.debug("%s of %s on %s: %s of %s", self._kernel, shape, name, chosen, seconds)
        self._write(file, {"device": name, "shape": shape, "config": asdict(chosen)})
        return chosen

    def _file(self, name: str, shape: Shape) -> Path:
        """Return the cache file of a shape; it depends on the configurations and the Triton
        version.
        """
        folder = Path(triton.knobs.cache.dir) / "tuned" if self._folder is None else self._folder
        digest = hashlib.sha256(repr((self.configs, shape)).encode()).hexdigest()[:16]
        device = re.sub(r"[^A-Za-z0-9.]+", "-", name)
        return folder.joinpath(device, str(triton.__version__), f"{self._kernel}-{digest}.json")

    def _read(self, file: Path) -> LaunchConfig | None:
        try:
            chosen = LaunchConfig(**json.loads(file.read_bytes())["config"])
            if chosen not in self.configs:
                raise ValueError(f"{chosen} is none of what is tried")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s is no tuned configuration (%s): it is found again", file, error)
            return None
        return chosen

    def _write(self, file: Path, content: dict[str, object]) -> None:
        if not self._keeps:
            return
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=file.parent, suffix=".part", delete=False
            ) as part:
                json.dump(content, part)
            Path(part.name).replace(file)
        except OSError as error:
            self._keeps = False
            logger.warning("tuned configurations of %s cannot be cached: %s", self._kernel, error)


def row_bucket(count: int) -> int:
    """Return the bucket of a number of rows, which share a configuration."""
    return min(MAX_BUCKET_ROWS, next_power_of_2(count, MIN_DOT_SIZE))
