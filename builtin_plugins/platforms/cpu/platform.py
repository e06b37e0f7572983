"""What the engine needs to know of a CPU: threads, memory, instruction sets, and which dtype it computes well."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from core.api import EngineConfig

GIB: Final = 1 << 30
MOST_KV_BYTES: Final = 4 * GIB
"""A cache larger than this is taken only when asked for: memory here belongs to other programs too."""
LEAST_KV_BYTES: Final = 64 << 20
SHARE_OF_FREE: Final = 0.5
ISA_FLAGS: Final = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "bf16")


class CpuPlatform:
    """Always available; memory is shared with the rest of the machine."""

    name = "cpu"
    device = "cpu"

    def is_available(self) -> bool:
        """Every machine has one."""
        return True

    def start(self, config: EngineConfig) -> None:
        """Give torch the threads asked for, else this rank's part of the cores this process may run on."""
        torch.set_num_threads(config.device.num_threads or max(1, usable_cores() // num_ranks(config)))

    def pick_dtype(self, checkpoint_dtype: str) -> str:
        """Follow the checkpoint, except for float16, which CPUs compute slowly and bfloat16 holds in range."""
        return "bfloat16" if checkpoint_dtype == "float16" else checkpoint_dtype

    def kv_memory_bytes(self, config: EngineConfig, weight_bytes: int) -> int:
        """Return what was asked for, else this rank's part of half the free memory; weights are already taken."""
        asked = config.cache.kv_cache_memory_bytes
        if asked is not None:
            return asked
        most = min(MOST_KV_BYTES, int(free_memory_bytes() * SHARE_OF_FREE))
        return max(LEAST_KV_BYTES, most // num_ranks(config))

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return memory the system zeroes when it is first touched, so that an unused cache takes none."""
        return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8))

    def facts(self) -> Mapping[str, Any]:
        """Return device, architecture and instruction sets."""
        return {"device": "cpu", "machine": platform.machine(), "isa": frozenset(instruction_sets())}


def num_ranks(config: EngineConfig) -> int:
    """Return how many ranks share this machine."""
    return config.parallel.tensor_parallel_size * config.parallel.pipeline_parallel_size


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes this process can still take: the machine's, or its container's if that is less."""
    free = 8 * GIB  # where the system does not say, as on macOS
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = int(lines.get("MemAvailable", "0 kB").split()[0]) * 1024 or free
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if limit.exists() and used.exists() and limit.read_text().strip().isdigit():
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return max(0, free)


def instruction_sets(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the instruction sets the engine's kernels ask about."""
    if not cpuinfo.exists():
        return []
    for line in cpuinfo.read_text().splitlines():
        if line.startswith(("flags", "Features")):
            have = set(line.split(":", 1)[1].split())
            return [flag for flag in ISA_FLAGS if flag in have]
    return []
