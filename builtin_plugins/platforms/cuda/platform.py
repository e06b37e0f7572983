"""What the engine needs to know of a GPU: whether there is one, its memory, what it computes, and
in which order.

Nothing here touches the device before `start`, so a process that has only asked may still fork.
"""

from __future__ import annotations

import importlib.util
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from builtin_plugins.platforms.cuda.replayed import (
    MOST_TOKENS,
    GraphRecorder,
    ReplayedModel,
    ladder,
)
from builtin_plugins.platforms.cuda.stream import DeviceStream
from builtin_plugins.platforms.recording import Recording
from core.api import ConfigError, EngineConfig, ForwardBatch, Model

GIB: Final = 1 << 30
BYTES_PER_TOKEN: Final = 160 << 10
"""Activations of a token of a step, at most at once: those of a dense model of 70 billion
parameters.
"""
BYTES_PER_ROW: Final = 2 << 20
"""Logits of a row and what sampling makes of them: three times float32 of 150 thousand tokens."""
BFLOAT16_FROM: Final = (8, 0)
FLOAT8_FROM: Final = (8, 9)
"""Compute capabilities of NVIDIA's devices."""

log = logging.getLogger(__name__)


class GpuPlatform:
    """A kind of GPU with memory of its own, of which one is used."""

    name = "gpu"
    device = "cuda"
    overlaps = True

    def __init__(self) -> None:
        self._mixed = False
        self._max_model_len = 1
        self._is_started = False

    @property
    def _module(self) -> Any:
        """What torch has for such devices."""
        return torch.get_device_module(self.device)

    def is_available(self) -> bool:
        """Say whether torch is built for such devices and counts one; they are not initialised."""
        return self._is_of_torch() and bool(self._module.device_count() > 0)

    def _is_of_torch(self) -> bool:
        """Say whether this is the kind of devices that torch, as it is built, means by `device`."""
        return True

    def start(self, config: EngineConfig) -> None:
        """Note what steps need.

        Raises `ConfigError` for more ranks than one, and for graphs that cannot be recorded.
        """
        parallel = config.parallel
        if parallel.tensor_parallel_size * parallel.pipeline_parallel_size > 1:
            raise ConfigError(
                f"--tensor-parallel-size {parallel.tensor_parallel_size} and "
                "--pipeline-parallel-size "
                f"{parallel.pipeline_parallel_size}: on {self.name} this version uses one device. "
                "Leave them out, or choose "
                "--device cpu."
            )
        self._mixed = Recording.of(config).mixed
        self._max_model_len = config.model.max_model_len or 1
        self._is_started = True

    def pick_dtype(self, checkpoint_dtype: str) -> str:
        """Follow the checkpoint, but for bfloat16 on devices that have none."""
        if checkpoint_dtype == "bfloat16" and self.is_available() and not self._has_bfloat16():
            return "float16"
        return checkpoint_dtype

    def _has_bfloat16(self) -> bool:
        return True

    def kv_memory_bytes(self, config: EngineConfig, weight_bytes: int) -> int:
        """Return what was asked for, else what is left of `--gpu-memory-utilization` beside all
        that is taken by now.

        Set aside are activations and logits of the largest step, by the sizes of large models:
        nothing is run to find out. Raises `ConfigError` where nothing is left.
        """
        asked = config.cache.kv_cache_memory_bytes
        if asked is not None:
            return asked
        if self._is_started:
            self._module.empty_cache()  # what loading took and gave back
        free, total = self._module.mem_get_info()
        taken = total - free + (0 if self._is_started else weight_bytes)
        scheduler = config.scheduler
        share = config.cache.gpu_memory_utilization
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

    def free_memory_bytes(self, config: EngineConfig) -> int:
        """Return what a device has free, of the share the engine may take."""
        free, total = self._module.mem_get_info()
        return int(max(0, free - int(total * (1 - config.cache.gpu_memory_utilization))))

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Return zeroed device memory. Raises `ConfigError` where the device has not as much left."""
        try:
            return torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"{num_bytes / GIB:.2f} GiB for a part of the KV cache are not free on this "
                "device. Lower "
                "--gpu-memory-utilization, --num-gpu-blocks-override or --kv-cache-memory-bytes."
            ) from error

    def facts(self) -> Mapping[str, Any]:
        """Return device, kind, machine, and whether Triton can be imported here."""
        has_triton = importlib.util.find_spec("triton") is not None
        return {
            "device": self.device,
            "kind": self.name,
            "machine": platform.machine(),
            "triton": has_triton,
        }

    def stream(self) -> DeviceStream:
        """Return what launches steps and waits for them."""
        return DeviceStream(self._module)

    def sizes(self, config: EngineConfig) -> Sequence[int]:
        """Return the numbers of tokens that steps are recorded for; none with `--enforce-eager`."""
        asked = Recording.of(config)
        scheduler = config.scheduler
        most = max(
            scheduler.max_num_seqs or 1,
            (scheduler.max_num_batched_tokens or 1) if asked.mixed else 1,
        )
        sizes = ladder(min(most, MOST_TOKENS)) if asked.sizes is None else asked.sizes
        if not asked.decodes:
            return ()
        return tuple(size for size in sizes if asked.most is None or size <= asked.most)

    def wrap(self, model: Model, sizes: Sequence[int]) -> Callable[[ForwardBatch], torch.Tensor]:
        """Return the model as one that is recorded for steps of these sizes."""
        if not sizes or self.device != "cuda":
            return model.__call__
        return ReplayedModel(model, sizes, self._max_model_len, GraphRecorder(), mixed=self._mixed)


class CudaPlatform(GpuPlatform):
    """GPUs of NVIDIA."""

    name = "cuda"

    def _is_of_torch(self) -> bool:
        return torch.version.hip is None

    def _has_bfloat16(self) -> bool:
        return bool(torch.cuda.get_device_capability() >= BFLOAT16_FROM)

    def facts(self) -> Mapping[str, Any]:
        """Return also the compute capability, as 90 for 9.0, and whether eight-bit floats are
        multiplied.
        """
        capability = torch.cuda.get_device_capability()
        own = {
            "capability": 10 * capability[0] + capability[1],
            "float8": capability >= FLOAT8_FROM,
        }
        return {**super().facts(), **own}


class RocmPlatform(GpuPlatform):
    """GPUs of AMD, which torch calls cuda's. Never run."""

    name = "rocm"

    def _is_of_torch(self) -> bool:
        return torch.version.hip is not None


class XpuPlatform(GpuPlatform):
    """GPUs of Intel. Never run."""

    name = "xpu"
    device = "xpu"
