"""The CPU platform: threads, memory, instruction sets and dtypes."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from core_kernels.library import Library, load_library, use_isa
from core_kernels.speed import prefers_int8

from builtin_plugins.clients.api import ranks_here
from builtin_plugins.launchers.api import ranks_per_node
from builtin_plugins.platforms.cgroup import memory_limit_bytes, tightest_memory_limit
from builtin_plugins.platforms.cpu.prefault import PrefaultedPages, keep_freed_pages
from builtin_plugins.platforms.cpu.recorded import MAX_RECORDED_TOKENS, RecordedModel
from builtin_plugins.platforms.machine import usable_cores
from builtin_plugins.platforms.recording import RecordingOptions
from core.api import ConfigError, EngineConfig
from core.api.models import ForwardBatch, Model

GIB: Final = 1 << 30
MAX_DEFAULT_KV_BYTES: Final = 4 * GIB
"""Upper bound of the default KV cache size; memory is shared with other programs."""
MIN_KV_BYTES: Final = 64 << 20
SHARE_OF_FREE: Final = 0.5
WEIGHTS_AHEAD: Final = 4
"""Divisor of the weights' bytes for the pre-faulted part of the KV cache (2,600 tokens for 0.6B).

An idle process pre-faults as many bytes as the weights have.
"""
MAX_PREFAULT_BYTES: Final = GIB
THREADS_PER_CORE: Final = 8
MIN_THREAD_LIMIT: Final = 64
"""Lower bound of the --num-threads limit; hundreds of threads exhaust memory with their stacks."""
ISA_FLAGS: Final = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "bf16",
)
ISA_FLAGS_OF: Final[Mapping[str, frozenset[str]]] = {
    "generic": frozenset(),
    "avx2": frozenset({"avx2"}),
    "avx2_vnni": frozenset({"avx2", "avx_vnni"}),
    "avx512": frozenset({"avx2", "avx512f"}),
    "avx512_vnni": frozenset({"avx2", "avx512f", "avx512_vnni"}),
    "avx512_bf16": frozenset({"avx2", "avx512f", "avx512_vnni", "avx512_bf16"}),
}
"""Instruction sets that remain with a forced variant of the kernels; with others, all."""

log = logging.getLogger(__name__)


class CpuPlatform:
    """The CPU; always available, with memory shared with other programs."""

    name = "cpu"
    device = "cpu"
    mixed_prefill_tokens = 512
    """Token budget of mixed steps: costs 3 % throughput, cuts decode stalls during prefill to a
    fourth.
    """

    def __init__(self) -> None:
        self._eager = False
        self._isa = ""
        """The forced variant of the kernels."""
        self._free_bytes: int | None = None
        """Free memory before loading; memory-mapped weights would count as free afterwards."""
        self._cache: list[torch.Tensor] = []
        self._weight_bytes = 0

    def is_available(self) -> bool:
        """Return True."""
        return True

    def start(self, config: EngineConfig) -> None:
        """Set torch's threads to --num-threads, by default this rank's share of the usable
        cores.
        """
        self._free_bytes = free_memory_bytes()
        keep_freed_pages()
        recording = RecordingOptions.from_config(config)
        if recording.stated:
            raise ConfigError(
                f"{recording.stated} applies to CUDA graphs only. Remove it; to disable step "
                "recording on CPUs, use -O0 or --enforce-eager."
            )
        if folder := config.options.get("kernel_cache_dir"):
            raise ConfigError(
                f"--kernel-cache-dir: got {folder}; expected none, because CPU kernels are "
                "compiled when the package is built. Remove it."
            )
        # Collectives of ranks are not calls of the C++ library.
        self._eager = recording.is_eager or num_ranks(config) > 1
        threads = config.device.num_threads
        cores = os.cpu_count() or 1
        limit = max(MIN_THREAD_LIMIT, THREADS_PER_CORE * cores)
        if threads is not None and threads > limit:
            raise ConfigError(
                f"--num-threads: got {threads}; expected up to {limit} on a machine of {cores} "
                "cores. Lower it, or remove it for one thread per core."
            )
        torch.set_num_threads(threads or max(1, usable_cores() // ranks_per_node(config)))
        self._isa = config.options.get("isa") or ""
        try:
            use_isa(self._isa)
        except ValueError as error:
            raise ConfigError(f"--isa: {error}.") from error

    def pick_dtype(self, checkpoint_dtype: str) -> str:
        """Return the checkpoint's dtype, but bfloat16 for float16, which is slow on CPUs."""
        return "bfloat16" if checkpoint_dtype == "float16" else checkpoint_dtype

    def kv_memory_bytes(self, config: EngineConfig, weight_bytes: int) -> int:
        """Return --kv-cache-memory-bytes, by default this rank's share of half the remaining
        memory, among all engines.
        """
        self._weight_bytes = weight_bytes
        flag = config.cache.kv_cache_memory_bytes
        if flag is not None:
            return flag
        ranks = ranks_per_node(config) * ranks_here(config)
        left = self.free_memory_bytes(config) - weight_bytes
        return max(MIN_KV_BYTES, min(MAX_DEFAULT_KV_BYTES // ranks, int(left * SHARE_OF_FREE)))

    def free_memory_bytes(self, config: EngineConfig) -> int:
        """Return this rank's share of the memory that was free before loading, or is free now."""
        free = free_memory_bytes() if self._free_bytes is None else self._free_bytes
        return free // (ranks_per_node(config) * ranks_here(config))

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return lazily zeroed memory, so an unused cache takes none.

        Raises `ConfigError` for more memory than the machine has, because the system would
        overcommit and kill the process later.
        """
        total = all_memory_bytes()
        try:
            if num_bytes <= total:
                memory = torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8))
                self._cache.append(memory)
                return memory
        except MemoryError:
            limit = "what the system gives this process (see `ulimit -a`)"
        else:
            limit = f"this machine's memory of {total / GIB:.2f} GiB"
        raise ConfigError(
            f"a KV cache of {num_bytes / GIB:.2f} GiB exceeds {limit}. Lower or remove "
            "--num-gpu-blocks-override and --kv-cache-memory-bytes."
        )

    def wrap(self, model: Model, sizes: Sequence[int]) -> Callable[[ForwardBatch], torch.Tensor]:
        """Return the model with recorded small steps, if the C++ library is available.

        Also pre-faults KV cache pages as steps run.
        """
        del sizes  # a recording per number of tokens
        library = load_library()
        cache = self._cache
        self._cache = []
        if library is None:
            return model.__call__
        _advise(model, library)
        forward = model.__call__ if self._eager else RecordedModel(model, library)
        if not cache:
            return forward
        idle_bytes = min(MAX_PREFAULT_BYTES, self._weight_bytes)
        pages = PrefaultedPages(library, cache, idle_bytes // WEIGHTS_AHEAD, idle_bytes)

        def step(batch: ForwardBatch) -> torch.Tensor:
            hidden = forward(batch)
            pages.on_step(large=len(batch.input_ids) > MAX_RECORDED_TOKENS)
            return hidden

        return step

    def facts(self) -> Mapping[str, Any]:
        """Return device, architecture and instruction sets."""
        available = frozenset(instruction_sets())
        return {
            "device": "cpu",
            "machine": platform.machine(),
            "isa": available & ISA_FLAGS_OF.get(self._isa, available),
        }


def _advise(model: Model, library: Library) -> None:
    """Log what would be faster where the processor has no products of the weights' dtype."""
    tensors = (*model.parameters(), *model.buffers()) if isinstance(model, torch.nn.Module) else ()
    plain = sum(each.nbytes for each in tensors if each.dtype == torch.bfloat16)
    if prefers_int8(library) and 2 * plain > sum(each.nbytes for each in tensors):
        log.info(
            "%s has no products of bfloat16: the kernels widen the weights to float32. "
            "--quantization int8 halves what a token reads and is faster; `engine plan` says by "
            "how much.",
            library.core_kernels_isa().decode(),
        )


def num_ranks(config: EngineConfig) -> int:
    """Return the number of ranks of one engine."""
    return config.parallel.tensor_parallel_size * config.parallel.pipeline_parallel_size


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Return the free bytes of the machine, or of its container if that is less."""
    free = 8 * GIB  # a default for systems without this file, such as macOS
    meminfo = root / "proc/meminfo"
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = int(lines.get("MemAvailable", "0 kB").split()[0]) * 1024 or free
    limit = tightest_memory_limit(root)
    return free if limit is None else min(free, limit.free_bytes)


def all_memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory bytes of the machine, or its container's limit if that is less."""
    total = 1 << 62  # no limit is known
    meminfo = root / "proc/meminfo"
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        total = int(lines.get("MemTotal", "0 kB").split()[0]) * 1024 or total
    limit_bytes = memory_limit_bytes(root)
    return total if limit_bytes is None else min(total, limit_bytes)


def instruction_sets(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the instruction sets that kernels are selected by."""
    if not cpuinfo.exists():
        return []
    for line in cpuinfo.read_text().splitlines():
        if line.startswith(("flags", "Features")):
            have = set(line.split(":", 1)[1].split())
            return [flag for flag in ISA_FLAGS if flag in have]
    return []
