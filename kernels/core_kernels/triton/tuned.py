"""Which tile and how many warps a kernel takes for a shape: all are tried once on each kind of
device, the fastest is kept on disk.

All choices add the same tiles in the same order; only the device's own order within a tile may
differ. The files lie beside what Triton has compiled (`TRITON_CACHE_DIR`), one for each shape, so
processes that try at the same time lose nothing.
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

from core_kernels.triton.launching import INTERPRETED, LEAST_PRODUCT, rounded

MOST_ROWS: Final = 1024
"""Numbers of rows up to which each power of two is a shape of its own."""
REPEATS: Final = 7
FLUSHED_BYTES: Final = 64 << 20
"""Written before each launch that is timed, so that no cache of the device has a weight already."""

Shape = tuple[int | str, ...]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """How a kernel is launched."""

    columns: int
    """Of the output, for a program."""
    warps: int
    stages: int


CHOICES: Final = (Choice(64, 4, 3), Choice(32, 4, 4), Choice(64, 8, 4), Choice(128, 8, 3))
"""For products; the first fits every device."""


class Clock(Protocol):
    """Times launches."""

    def device_name(self, device: torch.device) -> str | None:
        """Return the kind of the device; None: nothing can be timed there now."""

    def seconds(self, device: torch.device, launch: Callable[[], object]) -> float:
        """Return what a launch takes; infinity where the device has not room for it."""


class DeviceClock:
    """Of GPUs that torch calls cuda's."""

    def device_name(self, device: torch.device) -> str | None:
        """Return its name; None in the interpreter, and while a graph is captured."""
        if INTERPRETED or device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return None
        name: str = torch.cuda.get_device_name(device)
        return name

    def seconds(self, device: torch.device, launch: Callable[[], object]) -> float:
        """Return the median of some launches behind the one that compiles."""
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


class Tuned:
    """What was found for a kernel: the first choice where nothing can be timed.

    Of the process, as what Triton compiles is.
    """

    def __init__(
        self,
        kernel: str,
        choices: Sequence[Choice] = CHOICES,
        clock: Clock | None = None,
        folder: Path | None = None,
    ) -> None:
        self.choices: Final = tuple(choices)
        self._kernel: Final = kernel
        self._clock: Final = DeviceClock() if clock is None else clock
        self._folder: Final = folder
        self._found: Final[dict[tuple[torch.device, Shape], Choice]] = {}
        self._keeps = True

    def launch(
        self, device: torch.device, shape: Shape, launch: Callable[[Choice], object]
    ) -> None:
        """Launch with the choice for this shape. Where it is not known yet `launch` is called
        often, and has to write the
        same each time."""
        chosen = self._found.get((device, shape))
        if chosen is None:
            name = self._clock.device_name(device)
            if name is None:
                chosen = self.choices[0]
            else:
                chosen = self._found[device, shape] = self._look_up(name, device, shape, launch)
        launch(chosen)

    def _look_up(
        self, name: str, device: torch.device, shape: Shape, launch: Callable[[Choice], object]
    ) -> Choice:
        file = self._file(name, shape)
        kept = self._read(file)
        if kept is not None:
            return kept
        seconds = [self._clock.seconds(device, partial(launch, choice)) for choice in self.choices]
        chosen = self.choices[seconds.index(min(seconds))]
        logger.debug("%s of %s on %s: %s of %s", self._kernel, shape, name, chosen, seconds)
        self._write(file, {"device": name, "shape": shape, "choice": asdict(chosen)})
        return chosen

    def _file(self, name: str, shape: Shape) -> Path:
        """Return the file of a shape; with other choices or another Triton it is another one."""
        folder = Path(triton.knobs.cache.dir) / "tuned" if self._folder is None else self._folder
        digest = hashlib.sha256(repr((self.choices, shape)).encode()).hexdigest()[:16]
        device = re.sub(r"[^A-Za-z0-9.]+", "-", name)
        return folder.joinpath(device, str(triton.__version__), f"{self._kernel}-{digest}.json")

    def _read(self, file: Path) -> Choice | None:
        try:
            chosen = Choice(**json.loads(file.read_bytes())["choice"])
            if chosen not in self.choices:
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
            logger.warning("tuned configurations of %s are not kept: %s", self._kernel, error)


def alike(count: int) -> int:
    """Return what stands for a number of rows: those that share it share a choice."""
    return min(MOST_ROWS, rounded(count, LEAST_PRODUCT))
