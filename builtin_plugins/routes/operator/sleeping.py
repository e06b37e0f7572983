"""Sleep: an engine that computes nothing gives memory back to the system, until it is woken.

On a CPU weights lie where level 1 would move them to, so they stay, and the cache is given back
page by page, at its address: it comes again as it is written to. Level 2 gives weights back as
well; they are read again, into the memory they had.

On a GPU the driver gets both: at level 1 the host keeps the weights, at level 2 they are read
again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from core.api import InvalidRequest, RequestFailed
from core.contracts.infos import labelled

if TYPE_CHECKING:
    import torch

    from core.contracts.scheduling import LoadedParts, WorkerParts
    from core.model_spec.kv import LayerKV

NAME: Final = "sleeping"
KV_CACHE: Final = "kv_cache"
WEIGHTS: Final = "weights"
TAGS: Final = (WEIGHTS, KV_CACHE)
STATES: Final = ("awake", "weights_offloaded", "discard_all")
"""As vLLM's metric has them: awake, and asleep at the first or the second level."""
LEVELS: Final = ("1", "2")
"""What sleeps: the cache, or the weights, too. At either all has to be woken."""
MADV_DONTNEED: Final = 4
"""Linux': what the range held is gone, and its pages are the system's again."""


class Sleeping:
    """The scheduler half: knows what sleeps. An engine that was started again is awake."""

    name = NAME

    def __init__(self, *, parks: bool) -> None:
        """`parks`: somebody else keeps requests waiting meanwhile; else they are refused."""
        self._parks = parks
        self._asleep: set[str] = set()
        self._level = 1
        """Of the last sleep."""

    def attach(self, scheduler: Any) -> None:
        """Remember whose cache it is."""
        self._scheduler = scheduler

    def may_start(self, request: Any) -> bool:
        """Refuse whoever would start meanwhile, and for ever wait."""
        if self._asleep and not self._parks:
            raise RequestFailed(
                f"the engine sleeps ({', '.join(sorted(self._asleep))}); call wake_up() first."
            )
        return True

    def call(self, verb: str, data: bytes) -> bytes:
        """Answer whether anything sleeps: to `fall`, to `state`, to `wake`, which changes nothing
        here yet, and to `woken`,
        when the workers have done that. `idle` answers whether nobody uses any block, without which
        nothing falls asleep.
        """
        if verb == "idle":
            return b"1" if self._is_idle else b"0"
        if verb == "fall":
            if not self._is_idle:
                raise InvalidRequest(
                    "level", "blocks of the cache are in use; end what runs, or try again."
                )
            self._asleep = set(TAGS)
            self._level = 2 if data == b"2" else 1
        elif verb == "woken":
            self._asleep.difference_update(_named(data))
        elif verb not in ("state", "wake"):
            raise InvalidRequest(
                "name", f"{NAME} knows fall, wake, woken, idle and state, not {verb!r}."
            )
        return b"1" if self._asleep else b"0"

    def numbers(self) -> Mapping[str, float]:
        """Return the metric that tells whether it sleeps: of its states one is 1."""
        state = STATES[self._level if self._asleep else 0]
        return {
            labelled("engine_sleep_state", "sleep_state", each): float(each == state)
            for each in STATES
        }

    @property
    def _is_idle(self) -> bool:
        return not self._scheduler.kv_usage


class Releasing:
    """The worker half: gives memory back.

    Whoever calls has made sure that no block is in use, and none is found again.
    """

    name = NAME

    def __init__(self, registry: Any) -> None:
        self._registry = registry
        self._without_weights = False

    def loaded(self, parts: LoadedParts) -> Sequence[LayerKV]:
        """Remember what the model was read from."""
        self._parts = parts
        return ()

    def attach(self, parts: WorkerParts) -> None:
        """Remember where the cache is."""
        self._on_device: DeviceMemory | None = None
        if "kind" in self._parts.facts:  # a GPU, with memory of its own
            from builtin_plugins.routes.operator.device_memory import (
                DeviceMemory,
            )  # lazy: it imports torch

            self._on_device = DeviceMemory(self._parts.model, parts.memory.values(), parts.device)
        self._memory = [(t.data_ptr(), t.nbytes) for t in parts.memory.values()]

    def call(self, verb: str, data: bytes) -> bytes | None:
        """Answer `fall` (with a level) with the bytes by which this process, or what it has of a
        device, has become smaller, and
        `wake` (with tags) with nothing, when what they name can be used again.
        """
        if verb == "wake":
            return self._wake(_named(data))
        if verb != "fall":
            return None
        if self._on_device is not None:
            self._without_weights |= data == b"2"
            return str(self._on_device.fall(keeps_weights=data == b"1")).encode()
        before = _resident_bytes()
        for address, num_bytes in self._memory:
            _give_back(address, num_bytes)
        if data == b"2":
            self._without_weights = True
            for tensor in _tensors(self._parts.model):
                if tensor.is_contiguous():
                    _give_back(tensor.data_ptr(), tensor.nbytes)
        with suppress(AttributeError):  # another C library keeps what it was given back
            ctypes.CDLL(None).malloc_trim(0)
        return str(max(0, before - _resident_bytes())).encode()

    def _wake(self, tags: Sequence[str]) -> bytes | None:
        if self._on_device is not None and KV_CACHE in tags:
            self._on_device.wake_caches()
        if WEIGHTS in tags:
            reads = (
                self._without_weights if self._on_device is None else self._on_device.wake_weights()
            )
            if reads and self._without_weights:
                self._read_weights()
                self._without_weights = False
                return b""
        return None

    def _read_weights(self) -> None:
        """Load the model once more, and move what it has into the memory of the first: addresses
        are known to many.
        """
        from core.models.layers.loading import (
            load_alike,  # lazy: the scheduler's process may have no torch
        )

        parts = self._parts
        again = load_alike(parts.config, parts.source, self._registry, parts)
        for mine, read in zip(_tensors(parts.model), _tensors(again), strict=True):
            # What is part of a mapped file has come back by itself, and would no longer be part of
            # it when written to.
            if not mine.is_contiguous() or not _are_same(mine, read):
                mine.copy_(read)
            read.data = read.new_empty(
                0
            )  # each as soon as it is there, or there would be two models


def _named(tags: bytes) -> Sequence[str]:
    """Return the tags of a call: none are all."""
    return tags.decode().split(",") if tags else TAGS


def _tensors(model: Any) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two tensors have the same bytes; where one of them is no row of bytes, they may
    have.
    """
    import torch  # lazy: as above

    if not other.is_contiguous():
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def _give_back(address: int, num_bytes: int) -> None:
    """Give whole pages back; those at the edges may be others', too."""
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first and os.uname().sysname == "Linux":
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_DONTNEED
        )


def _resident_bytes() -> int:
    with suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    return 0
