"""Cache blocks of one rank as bytes in host memory, and the fingerprint of their layout."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
import numpy as np
import torch

from builtin_plugins.features.kv_tiers.checksum import HostBlock, SlotSizes
from core.api import EngineConfig
from core.model_spec.kv import KVLayout, RecurrentState

FORMAT = 1
"""Version of fingerprints and checksums."""


class DeviceBlockCopy(Protocol):
    """Gathers and scatters blocks of several caches on a device, each block as one byte row."""

    def gather(self, blocks: torch.Tensor) -> torch.Tensor:
        """Return rows uint8 [n, bytes] of blocks int64 [n]."""

    def scatter(self, blocks: torch.Tensor, rows: torch.Tensor) -> None:
        """Write rows to blocks."""


class CopyStream:
    """A device stream for the copies of one thread; nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._stream = self._module and self._module.Stream(device)

    @contextmanager
    def after_steps(self) -> Iterator[None]:
        """Run device work after all enqueued steps. Waits for it on exit."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(self._module.current_stream())
        with self._module.stream(self._stream):
            yield
        self._stream.synchronize()


class CacheBlocks:
    """Reads and writes the blocks of a cache. One instance serves one thread."""

    def __init__(
        self,
        layout: KVLayout,
        memory: Mapping[tuple[int, int], torch.Tensor],
        make_copy: Callable[[Sequence[torch.Tensor]], DeviceBlockCopy | None] | None = None,
    ) -> None:
        """`memory`: uint8 [blocks, bytes], by (pool, slot).

        `make_copy`: returns the device copy of a group's caches; None: by their device.
        """
        slots: dict[int, list[torch.Tensor]] = {}
        for (pool, _), tensor in sorted(memory.items(), key=lambda item: item[0]):
            slots.setdefault(pool, []).append(tensor)
        self._slots = [slots.get(group.pool, []) for group in layout.groups]
        self._copies = list(map(make_copy or _copy_on_device, self._slots))
        devices = (tensor.device for group_slots in self._slots for tensor in group_slots)
        self._stream = CopyStream(next(devices, torch.device("cpu")))
        self.block_bytes = [
            sum(tensor.shape[1] for tensor in group_slots) for group_slots in self._slots
        ]
        """Bytes of a block on this rank, by group."""
        self._staging = [
            torch.empty(
                size,
                dtype=torch.uint8,
                pin_memory=any(tensor.is_cuda for tensor in group_slots),
            )
            for size, group_slots in zip(self.block_bytes, self._slots, strict=True)
        ]
        self._staging_blocks = [
            SlotSizes([tensor.shape[1] for tensor in group_slots]).split(staging.numpy())
            for staging, group_slots in zip(self._staging, self._slots, strict=True)
        ]
        self._host_layouts = {
            group: BlockLayout(self._slots[group])
            for group, copy in enumerate(self._copies)
            if copy is None
        }
        """Layouts of the groups in host memory."""

    def read_block(self, group: int, block: int) -> HostBlock:
        """Return a block's bytes: a view on a CPU, a staged copy from a device."""
        copy = self._copies[group]
        if copy is None:
            return self._host_layouts[group].block(block)
        with self._stream.after_steps():
            rows = copy.gather(torch.tensor([block], device=self._slots[group][0].device))
            self._staging[group].copy_(rows[0])
        return self.staging(group)

    def staging(self, group: int) -> HostBlock:
        """Return the staging buffer of a group."""
        return self._staging_blocks[group]

    def destination(self, group: int, block: int) -> HostBlock:
        """Return the buffer to fill before `commit`: the block itself on a CPU, else staging."""
        if group in self._host_layouts:
            return self._host_layouts[group].block(block)
        return self.staging(group)

    def commit(self, group: int, block: int) -> None:
        """Copy a filled `destination` into the cache."""
        if group not in self._host_layouts:
            self.write_staged(group, block)

    def write_staged(self, group: int, block: int) -> None:
        """Copy the staging buffer into the cache."""
        copy = self._copies[group]
        slots = self._slots[group]
        if copy is None:
            staged = self.staging(group).arrays()
            for source, target in zip(staged, self.read_block(group, block).arrays(), strict=True):
                np.copyto(target, source)
        else:
            with self._stream.after_steps():
                device = slots[0].device
                rows = self._staging[group].to(device, copy=True)
                copy.scatter(torch.tensor([block], device=device), rows[None])


class BlockLayout:
    """Addresses of the blocks of a group's caches in host memory."""

    def __init__(self, slots: Sequence[torch.Tensor]) -> None:
        self._caches = caches = [tensor.numpy() for tensor in slots]
        self._sizes = SlotSizes([cache.shape[1] for cache in caches])
        self._starts = np.array([cache.ctypes.data for cache in caches], np.uint64)
        self._strides = np.array([cache.strides[0] for cache in caches], np.uint64)

    def block(self, block: int) -> HostBlock:
        """Return a view of one block."""
        addresses = self._starts + self._strides * np.uint64(block)
        return HostBlock(self._sizes, addresses, lambda: [cache[block] for cache in self._caches])


def _copy_on_device(caches: Sequence[torch.Tensor]) -> DeviceBlockCopy | None:
    """Return the device copy of caches; None: they are in host memory."""
    if all(cache.device.type == "cpu" for cache in caches):
        return None
    from core_kernels.triton.block_copy import BlockCopier  # lazy: triton is optional

    return BlockCopier(caches)


def layout_facts(
    config: EngineConfig, layout: KVLayout, backend: Any, device: str, rank: int, num_ranks: int
) -> dict[str, Any]:
    """Return, by user-visible names, all settings that the bytes of a block depend on.

    Block keys cover the model's files and the tokens. These facts cover the layout of the layers,
    the implementations that compute them, and the rank's shard.
    """
    model = config.model
    return {
        "format": FORMAT,
        "dtype": model.dtype,
        "kv_cache_dtype": sorted(
            {
                group.spec.dtype
                for group in layout.groups
                if not isinstance(group.spec, RecurrentState)
            }
        ),
        "quantization": model.quantization,
        "model_impl": model.model_impl,
        "hf_overrides": model.hf_overrides,
        "tensor_parallel_size": config.parallel.tensor_parallel_size,
        "ranks": num_ranks,
        "rank": rank,
        "block_size": [group.block_size for group in layout.groups],
        "hash_block_size": layout.hash_block_size,
        "attention_backend": f"{type(backend).__module__}.{type(backend).__qualname__}",
        "device": device,
        "bytes": [(pool.slot_bytes, pool.num_slots) for pool in layout.pools],
        "layout": msgspec.to_builtins(layout.groups),
    }


def fingerprint_of(facts: Mapping[str, Any]) -> str:
    """Return the hex digest of facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
