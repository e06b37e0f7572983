"""Blocks of a rank's cache as bytes in host memory, and what is the same wherever these bytes mean
the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
import numpy as np
import torch

from builtin_plugins.kv_connectors.sealing import Pieces, Sizes
from core.api import EngineConfig, KVLayout, RecurrentState

FORMAT = 1
"""Of what fingerprints and seals are made of."""


class Packed(Protocol):
    """Blocks of several caches on a device, each as one row of bytes."""

    def gather(self, blocks: torch.Tensor) -> torch.Tensor:
        """Return rows uint8 [n, bytes] of blocks int64 [n]."""

    def scatter(self, blocks: torch.Tensor, rows: torch.Tensor) -> None:
        """Write rows to blocks."""


class Beside:
    """Work of a thread on a device, beside its steps: in a stream of its own where there are
    streams.
    """

    def __init__(self, device: torch.device) -> None:
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._stream = self._module and self._module.Stream(device)

    @contextmanager
    def behind_steps(self) -> Iterator[None]:
        """Work behind all that steps were given until now; on leaving, wait until it is done."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(self._module.current_stream())
        with self._module.stream(self._stream):
            yield
        self._stream.synchronize()


class CacheBlocks:
    """The blocks of a cache, for one thread, which brings them to host memory and back."""

    def __init__(
        self,
        layout: KVLayout,
        memory: Mapping[tuple[int, int], torch.Tensor],
        packed: Callable[[Sequence[torch.Tensor]], Packed | None] | None = None,
    ) -> None:
        """`memory`: by (pool, slot), uint8 [blocks, bytes]. `packed` makes what moves blocks of a
        group's caches; None: the
        device says."""
        slots: dict[int, list[torch.Tensor]] = {}
        for (pool, _), tensor in sorted(memory.items(), key=lambda item: item[0]):
            slots.setdefault(pool, []).append(tensor)
        self._slots = [slots.get(group.pool, []) for group in layout.groups]
        self._packed = list(map(packed or _packed_on_device, self._slots))
        self._beside = Beside(
            next(
                (tensor.device for of_group in self._slots for tensor in of_group),
                torch.device("cpu"),
            )
        )
        self.block_bytes = [sum(tensor.shape[1] for tensor in of_group) for of_group in self._slots]
        """Of a block on this rank, by group."""
        self._staging = [
            torch.empty(
                size, dtype=torch.uint8, pin_memory=any(tensor.is_cuda for tensor in of_group)
            )
            for size, of_group in zip(self.block_bytes, self._slots, strict=True)
        ]
        self._staged = [
            Sizes([tensor.shape[1] for tensor in of_group]).cut(staging.numpy())
            for staging, of_group in zip(self._staging, self._slots, strict=True)
        ]
        self._cached = {
            group: Lying(self._slots[group])
            for group, packed in enumerate(self._packed)
            if packed is None
        }
        """Of those that lie in host memory."""

    def look(self, group: int, block: int) -> Pieces:
        """Return a block's bytes: on a CPU where they lie, from a device's memory in a copy."""
        packed = self._packed[group]
        if packed is None:
            return self._cached[group].block(block)
        with self._beside.behind_steps():
            rows = packed.gather(torch.tensor([block], device=self._slots[group][0].device))
            self._staging[group].copy_(rows[0])
        return self.staging(group)

    def staging(self, group: int) -> Pieces:
        """Return the place of a block that is not in the cache yet."""
        return self._staged[group]

    def landing(self, group: int, block: int) -> Pieces:
        """Return where a block is copied to before it `lands`: on a CPU its own place in the cache."""
        return self._cached[group].block(block) if group in self._cached else self.staging(group)

    def land(self, group: int, block: int) -> None:
        """Have what was copied to its landing in the cache."""
        if group not in self._cached:
            self.put(group, block)

    def put(self, group: int, block: int) -> None:
        """Copy what is in staging into the cache."""
        packed = self._packed[group]
        slots = self._slots[group]
        if packed is None:
            for part, place in zip(
                self.staging(group).arrays(), self.look(group, block).arrays(), strict=True
            ):
                np.copyto(place, part)
        else:
            with self._beside.behind_steps():
                device = slots[0].device
                rows = self._staging[group].to(device, copy=True)
                packed.scatter(torch.tensor([block], device=device), rows[None])


class Lying:
    """Blocks of a group's caches in host memory."""

    def __init__(self, slots: Sequence[torch.Tensor]) -> None:
        self._caches = caches = [tensor.numpy() for tensor in slots]
        self._sizes = Sizes([cache.shape[1] for cache in caches])
        self._starts = np.array([cache.ctypes.data for cache in caches], np.uint64)
        self._strides = np.array([cache.strides[0] for cache in caches], np.uint64)

    def block(self, block: int) -> Pieces:
        """Return one of them."""
        addresses = self._starts + self._strides * np.uint64(block)
        return Pieces(self._sizes, addresses, lambda: [cache[block] for cache in self._caches])


def _packed_on_device(caches: Sequence[torch.Tensor]) -> Packed | None:
    """Return what moves blocks of caches that are a device's."""
    if all(cache.device.type == "cpu" for cache in caches):
        return None
    from core_kernels.triton.packed_blocks import PackedBlocks  # lazy: triton is not everywhere

    return PackedBlocks(caches)


def facts_of(
    config: EngineConfig, layout: KVLayout, backend: Any, device: str, rank: int, num_ranks: int
) -> dict[str, Any]:
    """Return, by names that users know, what is the same wherever bytes under a key mean the same.

    Keys stand for the model's files and the tokens. What else bears on a block is how its layers
    are laid out, who computes them with what, and which part of them is this rank's.
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
    """Return hexadecimal digits that stand for facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
