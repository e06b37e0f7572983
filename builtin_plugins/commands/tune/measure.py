"""Measures how fast numbers of threads multiply by stored weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from core.api import ConfigError

if TYPE_CHECKING:
    from core_kernels.library import Library
    from core_kernels.speed import Speed

    from core.api import EngineConfig

log = logging.getLogger(__name__)
MAX_COUNTS: Final = 4
"""Maximum number of thread counts that are measured."""
EQUAL_SHARE: Final = 0.97
"""Share of the best read bandwidth from which thread counts differ by their products only."""
WEIGHT_BYTES: Final = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int4": 0.5}
"""Bytes of a weight by kind of storage, without scales; 1 for others."""


def thread_counts(cores: int) -> list[int]:
    """Return the thread counts to measure: all cores, half of them, a quarter, ..."""
    counts: list[int] = []
    while cores >= 1 and len(counts) < MAX_COUNTS:
        counts.append(cores)
        cores = cores // 2
    return counts


def fastest(speeds: Mapping[int, Speed]) -> int:
    """Return the thread count with the highest read bandwidth; of equal ones, the best products."""
    best = max(speed.decode_bytes for speed in speeds.values())
    equal = [n for n, speed in speeds.items() if speed.decode_bytes >= EQUAL_SHARE * best]
    return max(equal, key=lambda n: speeds[n].prefill_bytes)


def operations_per_s(speed: Speed) -> float:
    """Return the multiplications and additions per second with many rows."""
    return 2 * speed.prefill_bytes / WEIGHT_BYTES.get(speed.kind, 1.0)


def cpu_library(config: EngineConfig) -> Library:
    """Return the kernels in the variant of `--isa`.

    Raises `ConfigError` without them, and for another device than a CPU.
    """
    from core_kernels.library import load_library, use_isa  # lazy: loads torch

    if config.device.device not in ("auto", "cpu"):
        raise ConfigError(
            f"--device: got {config.device.device!r}; expected cpu: engine tune measures "
            "processors. Remove the flag."
        )
    try:
        use_isa(config.options.get("isa") or "")
    except ValueError as error:
        raise ConfigError(f"--isa: {error}.") from error
    library = load_library()
    if library is None:
        raise ConfigError(
            "engine tune: got no C++ kernels; expected them for this processor. Install a C++ "
            "compiler and run it again; `engine doctor` says more."
        )
    return library


def measure(library: Library, threads: int, kinds: Sequence[str]) -> dict[str, Speed]:
    """Return the speed of each kind of storage with this number of threads."""
    from core_kernels import speed  # lazy: loads torch

    library.core_kernels_threads(threads)
    measure_speed: Callable[[Library, str], Speed] = speed.measure_speed
    speeds = {}
    for kind in kinds:
        log.info("measuring %s with threads: %d", kind, threads)
        speeds[kind] = measure_speed(library, kind)
    return speeds
