"""The GPU platforms: availability, memory, capabilities, streams and CUDA graphs.

Nothing here initialises the device before `start`, so a process that only probes may still fork.
"""

from __future__ import annotations

import importlib.util
import logging
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed

from builtin_plugins.platforms.cuda.cuda_graphs import (
    MAX_CAPTURED_TOKENS,
    CudaGraphModel,
    GraphRecorder,
    capture_sizes,
)
from builtin_plugins.platforms.cuda.peer_memory import PeerMemory, SymmetricMemory, is_one_host
from builtin_plugins.platforms.cuda.process_group import DeviceGroup
from builtin_plugins.platforms.cuda.stream import DeviceStream
from builtin_plugins.platforms.recording import RecordingOptions
from core.api import ConfigError, EngineConfig
from core.api.execution import StepPlan
from core.api.models import ForwardBatch, Model
from core.model_spec.kv import CrossAttention, KVLayout, LayerKV
from core.models.layers.parallel import COLLECTIVE_TIMEOUT

GIB: Final = 1 << 30
BYTES_PER_TOKEN: Final = 160 << 10
"""Peak activation bytes per token of a step, as in a dense 70B model."""
BYTES_PER_ROW: Final = 2 << 20
"""Bytes per row for logits and sampling: three float32 rows of 150,000 tokens."""
BFLOAT16_FROM: Final = (8, 0)
FLOAT8_FROM: Final = (8, 9)
"""Minimum compute capabilities for bfloat16 and FP8."""

GENERATING: Final = "generate"
"""Runner of models with steps that are measured."""

_dist: Any = torch.distributed  # its names have no type information
log = logging.getLogger(__name__)


class GpuPlatform:
    """Base class of GPU platforms; each rank uses one device."""

    name = "gpu"
    device = "cuda"
    overlaps = True
    has_collectives = True
    """Whether ranks each get a device and communicate, by NCCL."""

    def __init__(self) -> None:
        self._mixed = False
        self._max_model_len = 1
        self._has_peer_memory = True
        self._is_started = False
        self._step_bytes: int | None = None
        """Measured memory of the largest step; None: it is estimated."""

    @property
    def _module(self) -> Any:
        """torch's module for the device type, such as `torch.cuda`."""
        return torch.get_device_module(self.device)

    def is_available(self) -> bool:
        """Return whether torch supports the device type and finds a device, without initialising
        it.
        """
        return self._is_of_torch() and bool(self._module.device_count() > 0)

    def _is_of_torch(self) -> bool:
        """Return whether this build of torch uses `device` for this platform."""
        return True

    def start(self, config: EngineConfig) -> None:
        """Store the settings of steps. Raises `ConfigError` for ranks that cannot communicate, a
        cache folder that cannot be written, invalid graph settings, and settings of CPU kernels.
        """
        if isa := config.options.get("isa"):
            raise ConfigError(
                f"--isa: got {isa}; expected none, because {self.name} runs no CPU kernels. "
                "Remove it, or use --device cpu."
            )
        for field in ("tensor_parallel_size", "pipeline_parallel_size"):
            size = getattr(config.parallel, field)
            if size > 1 and not self.has_collectives:
                raise ConfigError(
                    f"--{field.replace('_', '-')}: got {size}; expected 1 on {self.name}. Remove "
                    "it, or use --device cpu."
                )
        if folder := config.options.get("kernel_cache_dir"):
            _use_kernel_cache(folder)
        self._mixed = RecordingOptions.from_config(config).mixed
        self._max_model_len = config.model.max_model_len or 1
        self._has_peer_memory = not config.options.get("disable_custom_all_reduce", False)
        self._is_started = True

    def process_group(self, store: Any, rank: int, size: int) -> DeviceGroup:
        """Return a group of ranks that communicate on their devices' streams: by NCCL, and small
        sums through each other's memory unless `--disable-custom-all-reduce`.
        """
        backend = self._backend(store, rank, size)

        def connect() -> PeerMemory | None:
            uses_peers = self._has_peer_memory and is_one_host(store, rank, size)
            return self._peer_memory(backend, store, rank, size) if uses_peers else None

        return DeviceGroup(backend, size, connect)

    def _backend(self, store: Any, rank: int, size: int) -> Any:
        """Return a process group of NCCL."""
        options = _dist.ProcessGroupNCCL.Options()
        options._timeout = COLLECTIVE_TIMEOUT
        return _dist.ProcessGroupNCCL(store, rank, size, options)

    def _peer_memory(self, backend: Any, store: Any, rank: int, size: int) -> PeerMemory:
        """Return memory that all ranks read. Raises `RuntimeError` if devices do not support it."""
        return SymmetricMemory(backend, store, rank, size)

    def pick_dtype(self, checkpoint_dtype: str) -> str:
        """Return the checkpoint's dtype, but float16 for bfloat16 on devices without it."""
        if checkpoint_dtype == "bfloat16" and self.is_available() and not self._has_bfloat16():
            return "float16"
        return checkpoint_dtype

    def _has_bfloat16(self) -> bool:
        return True

    def kv_memory_bytes(self, config: EngineConfig, weight_bytes: int) -> int:
        """Return --kv-cache-memory-bytes, by default the rest of `--gpu-memory-utilization`.

        Reserves the memory of the largest step, as `profile` measured it; before a start, and for
        models that it does not run, an estimate for large ones. Raises `ConfigError` if nothing is
        left.
        """
        flag = config.cache.kv_cache_memory_bytes
        if flag is not None:
            return flag
        if self._is_started:
            self._module.empty_cache()  # releases memory that loading freed
        free, total = self._module.mem_get_info()
        taken = total - free + (0 if self._is_started else weight_bytes)
        scheduler = config.scheduler
        share = config.cache.gpu_memory_utilization
        steps = self._step_bytes
        if steps is None:
            steps = (scheduler.max_num_batched_tokens or 0) * BYTES_PER_TOKEN
            steps += (scheduler.max_num_seqs or 0) * BYTES_PER_ROW
        left: int = int(total * share) - taken - steps
        if left <= 0:
            raise ConfigError(
                f"--gpu-memory-utilization {share} of {total / GIB:.2f} GiB leaves nothing for the "
                "KV cache: "
                f"{taken / GIB:.2f} GiB are taken, {weight_bytes / GIB:.2f} GiB of it by weights, "
                "and steps may need "
                f"{steps / GIB:.2f} GiB. Raise it, lower --max-num-batched-tokens or "
                "--max-num-seqs, or say "
                "--kv-cache-memory-bytes."
            )
        return left

    def profile(
        self,
        config: EngineConfig,
        layers: Sequence[LayerKV],
        run: Callable[[KVLayout, StepPlan], None],
    ) -> None:
        """Measure the memory of the largest step, unless the size of the KV cache is set.

        Captured steps need a second one of their size. Raises `ConfigError` if the step does not
        fit the device.
        """
        cache = config.cache
        if cache.kv_cache_memory_bytes is not None or cache.num_gpu_blocks_override is not None:
            return
        has_encoder = any(isinstance(layer.spec, CrossAttention) for layer in layers)
        if config.model.runner != GENERATING or has_encoder or not layers:
            return
        # Imported lazily: only a worker plans steps of its own.
        from builtin_plugins.platforms.cuda.profiling import (
            largest_step,
            smallest_layout,
            too_large,
        )

        started = time.monotonic()
        module = self._module
        module.empty_cache()
        module.reset_peak_memory_stats()
        before = module.memory_reserved()
        layout = smallest_layout(config, layers)
        plan = largest_step(config, layout)
        try:
            run(layout, plan)
        except torch.OutOfMemoryError as error:
            raise too_large(config) from error
        module.synchronize()
        peak = module.max_memory_reserved() - before
        module.empty_cache()
        captured = min(max(self.sizes(config), default=0) / plan.num_tokens, 1.0)
        self._step_bytes = int(peak * (1 + captured))
        log.info(
            "a step of %d tokens takes %.2f GiB, measured in %.1f s",
            *(plan.num_tokens, peak / GIB, time.monotonic() - started),
        )

    def free_memory_bytes(self, config: EngineConfig) -> int:
        """Return the free bytes within the engine's share of the device."""
        free, total = self._module.mem_get_info()
        return int(max(0, free - int(total * (1 - config.cache.gpu_memory_utilization))))

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return zeroed device memory. Raises `ConfigError` if the device has too little left."""
        try:
            return torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"{num_bytes / GIB:.2f} GiB for a part of the KV cache are not free on this "
                "device. Lower "
                "--gpu-memory-utilization, --num-gpu-blocks-override or --kv-cache-memory-bytes."
            ) from error

    def facts(self) -> Mapping[str, Any]:
        """Return device, kind, machine, and whether Triton is installed."""
        has_triton = importlib.util.find_spec("triton") is not None
        return {
            "device": self.device,
            "kind": self.name,
            "machine": platform.machine(),
            "triton": has_triton,
        }

    def stream(self) -> DeviceStream:
        """Return the stream that launches steps and waits for them."""
        return DeviceStream(self._module)

    def sizes(self, config: EngineConfig) -> Sequence[int]:
        """Return the CUDA graph capture sizes in tokens; empty with `--enforce-eager`."""
        options = RecordingOptions.from_config(config)
        scheduler = config.scheduler
        max_tokens = max(
            scheduler.max_num_seqs or 1,
            (scheduler.max_num_batched_tokens or 1) if options.mixed else 1,
        )
        sizes = (
            capture_sizes(min(max_tokens, MAX_CAPTURED_TOKENS))
            if options.sizes is None
            else options.sizes
        )
        if not options.decodes:
            return ()
        return tuple(size for size in sizes if options.max_size is None or size <= options.max_size)

    def wrap(self, model: Model, sizes: Sequence[int]) -> Callable[[ForwardBatch], torch.Tensor]:
        """Return the model with CUDA graphs for these sizes."""
        if not sizes or self.device != "cuda":
            return model.__call__
        return CudaGraphModel(model, sizes, self._max_model_len, GraphRecorder(), mixed=self._mixed)


def _use_kernel_cache(folder: str) -> None:
    """Let Triton, and the autotuner of its kernels, cache files in a folder."""
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--kernel-cache-dir: got {folder}; expected a folder that can be written "
            f"({error.strerror or error}). Choose another one."
        ) from error
    # Imported lazily: a platform without Triton has other kernels.
    import triton

    triton.knobs.cache.dir = str(path.resolve())


class CudaPlatform(GpuPlatform):
    """NVIDIA GPUs."""

    name = "cuda"

    def _is_of_torch(self) -> bool:
        return torch.version.hip is None

    def _has_bfloat16(self) -> bool:
        return bool(torch.cuda.get_device_capability() >= BFLOAT16_FROM)

    def facts(self) -> Mapping[str, Any]:
        """Return also the compute capability (90 for 9.0) and whether FP8 products are
        supported.
        """
        capability = torch.cuda.get_device_capability()
        own = {
            "capability": 10 * capability[0] + capability[1],
            "float8": capability >= FLOAT8_FROM,
        }
        return {**super().facts(), **own}


class RocmPlatform(GpuPlatform):
    """AMD GPUs, which torch also calls cuda. Never run."""

    name = "rocm"
    has_collectives = False

    def _is_of_torch(self) -> bool:
        return torch.version.hip is not None


class XpuPlatform(GpuPlatform):
    """Intel GPUs. Never run."""

    name = "xpu"
    device = "xpu"
    has_collectives = False
