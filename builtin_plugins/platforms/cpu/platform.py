"""What the engine needs to know of a CPU: threads, memory, instruction sets, and which dtype it
computes well.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from core_kernels.library import load_library

from builtin_plugins.platforms.cpu.pages import TakenAhead, keep_freed_pages
from builtin_plugins.platforms.cpu.recorded import MOST_TOKENS, RecordedModel
from builtin_plugins.platforms.recording import Recording
from core.api import ConfigError, EngineConfig, ForwardBatch, Model
from core.process.cores import usable_cores

GIB: Final = 1 << 30
MOST_KV_BYTES: Final = 4 * GIB
"""A cache larger than this is taken only when asked for: memory here belongs to other programs too.
"""
LEAST_KV_BYTES: Final = 64 << 20
SHARE_OF_FREE: Final = 0.5
WEIGHTS_AHEAD: Final = 4
"""Of the cache a fourth of the weights' bytes is taken before it is needed: for the model of 0.6B,
2,600 tokens. An idle
process takes as much as the weights have."""
MOST_AHEAD_BYTES: Final = GIB
THREADS_PER_CORE: Final = 8
LEAST_MOST_THREADS: Final = 64
"""So many threads may be asked for on the smallest machine; some hundreds more, and their stacks
end the process.
"""
ISA_FLAGS: Final = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "bf16",
)


log = logging.getLogger(__name__)


class CpuPlatform:
    """Always available; memory is shared with the rest of the machine."""

    name = "cpu"
    device = "cpu"
    mixed_prefill_tokens = 512
    """Some 3 % of throughput for a fourth of the time that streams stand still while prompts are
    read.
    """

    def __init__(self) -> None:
        self._eager = False
        self._free_bytes: int | None = None
        """Before the weights came; those that are mapped from files would count as free afterwards.
        """
        self._cache: list[torch.Tensor] = []
        self._weight_bytes = 0

    def is_available(self) -> bool:
        """Every machine has one."""
        return True

    def start(self, config: EngineConfig) -> None:
        """Give torch the threads asked for, else this rank's part of the cores this process may run
        on.
        """
        self._free_bytes = free_memory_bytes()
        keep_freed_pages()
        recording = Recording.of(config)
        if recording.stated:
            raise ConfigError(
                f"{recording.stated} is about graphs of GPUs. On CPUs steps are recorded "
                "otherwise, and -O0 or --enforce-eager "
                "records none; leave it out."
            )
        # What ranks say to each other is no call of the library.
        self._eager = recording.is_eager or num_ranks(config) > 1
        asked = config.device.num_threads
        cores = os.cpu_count() or 1
        most = max(LEAST_MOST_THREADS, THREADS_PER_CORE * cores)
        if asked is not None and asked > most:
            raise ConfigError(
                f"--num-threads {asked} is more than a machine of {cores} cores has a use for; use "
                f"at most {most}, or leave "
                "it out for as many as there are cores."
            )
        torch.set_num_threads(asked or max(1, usable_cores() // num_ranks(config)))

    def pick_dtype(self, checkpoint_dtype: str) -> str:
        """Follow the checkpoint, except for float16, which CPUs compute slowly and bfloat16 holds
        in range.
        """
        return "bfloat16" if checkpoint_dtype == "float16" else checkpoint_dtype

    def kv_memory_bytes(self, config: EngineConfig, weight_bytes: int) -> int:
        """Return what was asked for, else this rank's part of half the memory that the weights
        leave.
        """
        self._weight_bytes = weight_bytes
        asked = config.cache.kv_cache_memory_bytes
        if asked is not None:
            return asked
        ranks = num_ranks(config)
        left = self.free_memory_bytes(config) - weight_bytes
        return max(LEAST_KV_BYTES, min(MOST_KV_BYTES // ranks, int(left * SHARE_OF_FREE)))

    def free_memory_bytes(self, config: EngineConfig) -> int:
        """Return this rank's part of what was free before the weights came, or is free now."""
        free = free_memory_bytes() if self._free_bytes is None else self._free_bytes
        return free // num_ranks(config)

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return memory the system zeroes when it is first touched, so that an unused cache takes
        none.

        Raises `ConfigError` for more than the machine has: the system would give it, and end the
        process later.
        """
        most = all_memory_bytes()
        try:
            if num_bytes <= most:
                memory = torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8))
                self._cache.append(memory)
                return memory
        except MemoryError:
            log.debug("the system refuses %d bytes", num_bytes)
        raise ConfigError(
            f"a KV cache of {num_bytes / GIB:.2f} GiB is more than this machine's memory of "
            f"{most / GIB:.2f} GiB holds. "
            "Lower --num-gpu-blocks-override or --kv-cache-memory-bytes, or leave both out."
        )

    def wrap(self, model: Model, sizes: Sequence[int]) -> Callable[[ForwardBatch], torch.Tensor]:
        """Return the model as one whose small steps are recorded, where there is a C++ library to
        do them again.

        As steps come, more of the cache is taken.
        """
        del sizes  # every number of tokens has its own
        library = load_library()
        cache = self._cache
        self._cache = []
        if library is None:
            return model.__call__
        forward = model.__call__ if self._eager else RecordedModel(model, library)
        if not cache:
            return forward
        idle_bytes = min(MOST_AHEAD_BYTES, self._weight_bytes)
        ahead = TakenAhead(library, cache, idle_bytes // WEIGHTS_AHEAD, idle_bytes)

        def step(batch: ForwardBatch) -> torch.Tensor:
            hidden = forward(batch)
            ahead.stepped(large=len(batch.input_ids) > MOST_TOKENS)
            return hidden

        return step

    def facts(self) -> Mapping[str, Any]:
        """Return device, architecture and instruction sets."""
        return {
            "device": "cpu",
            "machine": platform.machine(),
            "isa": frozenset(instruction_sets()),
        }


def num_ranks(config: EngineConfig) -> int:
    """Return how many ranks share this machine."""
    return config.parallel.tensor_parallel_size * config.parallel.pipeline_parallel_size


def free_memory_bytes(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int:
    """Return the bytes this process can still take: the machine's, or its container's if that is
    less.
    """
    free = 8 * GIB  # where the system does not say, as on macOS
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = int(lines.get("MemAvailable", "0 kB").split()[0]) * 1024 or free
    limit = cgroup / "memory.max"
    used = cgroup / "memory.current"
    if limit.exists() and used.exists() and limit.read_text().strip().isdigit():
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return max(0, free)


def all_memory_bytes(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int:
    """Return the bytes of the machine, or what its container may take if that is less."""
    total = 1 << 62  # where the system does not say, it judges by itself
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        total = int(lines.get("MemTotal", "0 kB").split()[0]) * 1024 or total
    limit = cgroup / "memory.max"
    text = limit.read_text().strip() if limit.exists() else ""
    return min(total, int(text)) if text.isdigit() else total


def instruction_sets(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the instruction sets the engine's kernels ask about."""
    if not cpuinfo.exists():
        return []
    for line in cpuinfo.read_text().splitlines():
        if line.startswith(("flags", "Features")):
            have = set(line.split(":", 1)[1].split())
            return [flag for flag in ISA_FLAGS if flag in have]
    return []
