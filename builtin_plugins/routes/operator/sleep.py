"""Sleep mode: an idle engine returns memory to the system until it is woken.

On a CPU, level 1 returns the pages of the KV cache; its addresses stay valid, and pages come back
when they are written. Weights stay, because they are in host memory already. Level 2 returns the
weights too, and reloads them into the same memory.

On a GPU the driver gets both. At level 1 the host holds the weights, at level 2 they are reloaded.
A release of the KV cache alone leaves the weights where they are.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.metric_sinks.api import with_label
from core.api import InvalidRequest, RequestFailed

if TYPE_CHECKING:
    import torch

    from core.api import Registry
    from core.api.execution import LoadedParts, WorkerParts
    from core.model_spec.kv import LayerKV


NAME: Final = "sleeping"
KV_CACHE: Final = "kv_cache"
WEIGHTS: Final = "weights"
TAGS: Final = (WEIGHTS, KV_CACHE)
STATES: Final = ("awake", "weights_offloaded", "discard_all", "kv_cache_released")
"""Labels of vLLM's metric: awake, asleep at level 1 or 2, and without its KV cache alone."""
LEVELS: Final = ("1", "2")
"""Sleep levels: without the KV cache, or without cache and weights. Both need a full wake-up."""
MADV_DONTNEED: Final = 4
"""Linux's advice that drops the contents of a range and returns its pages to the system."""


class SleepExtension:
    """Scheduler extension that tracks what sleeps. A restarted engine is awake."""

    name = NAME

    def __init__(self, *, parks: bool) -> None:
        """`parks`: another extension parks requests during sleep; otherwise they are refused."""
        self._parks = parks
        self._asleep: set[str] = set()
        self._state = STATES[0]
        """State that the last sleep led to."""

    def attach(self, scheduler: Any) -> None:
        """Store the scheduler."""
        self._scheduler = scheduler

    def may_start(self, request: Any) -> bool:
        """Refuse a request that would wait for ever."""
        if self._asleep and not self._parks:
            raise RequestFailed(
                f"the engine sleeps ({', '.join(sorted(self._asleep))}); call wake_up() first."
            )
        return True

    def call(self, verb: str, data: bytes) -> bytes:
        """Return whether anything sleeps.

        `sleep` starts a sleep, `release` one of the KV cache alone. `wake` changes nothing before
        the workers have woken up, `state` only reads. `idle` returns whether no block is in use,
        as a sleep needs.
        """
        if verb == "idle":
            return b"1" if self._is_idle else b"0"
        if verb in ("sleep", "release"):
            if not self._is_idle:
                raise InvalidRequest(
                    "level", "blocks of the cache are in use; end what runs, or try again."
                )
            if verb == "release" and self._asleep:
                raise InvalidRequest("kv_cache", "got a sleeping engine; wake it up first.")
            self._asleep = set(TAGS) if verb == "sleep" else {KV_CACHE}
            self._state = STATES[2 if data == b"2" else 1] if verb == "sleep" else STATES[3]
        elif verb not in ("state", "wake"):
            raise InvalidRequest(
                "name", f"{NAME} knows sleep, release, wake, idle and state, not {verb!r}."
            )
        return b"1" if self._asleep else b"0"

    def call_ended(self, verb: str, data: bytes, ranks: Sequence[bytes] | None) -> bytes | None:
        """Return whether anything sleeps after the workers have woken up."""
        if verb != "wake" or ranks is None:
            return None
        self._asleep.difference_update(_named(data))
        return b"1" if self._asleep else b"0"

    def numbers(self) -> Mapping[str, float]:
        """Return the sleep state metric, with 1 for the current state."""
        state = self._state if self._asleep else STATES[0]
        return {
            with_label("engine_sleep_state", "sleep_state", each): float(each == state)
            for each in STATES
        }

    @property
    def _is_idle(self) -> bool:
        return not self._scheduler.kv.usage


class MemoryReleaser:
    """Worker extension that returns memory. Callers ensure that no block is in use or cached."""

    name = NAME

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._without_weights = False

    def loaded(self, parts: LoadedParts) -> Sequence[LayerKV]:
        """Store the parts of the loaded model."""
        self._parts = parts
        return ()

    def attach(self, parts: WorkerParts) -> None:
        """Store the memory of the KV cache."""
        self._on_device: DeviceMemory | None = None
        if "kind" in self._parts.facts:  # a GPU, with memory of its own
            # lazy: it imports torch
            from builtin_plugins.routes.operator.device_memory import DeviceMemory

            self._on_device = DeviceMemory(self._parts.model, parts.memory.values(), parts.device)
        self._memory = [(t.data_ptr(), t.nbytes) for t in parts.memory.values()]

    def call(self, verb: str, data: bytes) -> bytes | None:
        """Release or restore memory.

        `sleep`, with a level, and `release`, of the KV cache alone, return the number of released
        bytes of the process or its device. `wake`, with tags, returns nothing once the memory is
        usable again.
        """
        if verb == "wake":
            return self._wake(_named(data))
        if verb not in ("sleep", "release"):
            return None
        if self._on_device is not None and verb == "release":
            return str(self._on_device.release_caches()).encode()
        if self._on_device is not None:
            self._without_weights |= data == b"2"
            return str(self._on_device.release(save_weights=data == b"1")).encode()
        before = _resident_bytes()
        for address, num_bytes in self._memory:
            _release(address, num_bytes)
        if data == b"2":
            self._without_weights = True
            for tensor in _tensors(self._parts.model):
                if tensor.is_contiguous():
                    _release(tensor.data_ptr(), tensor.nbytes)
        with suppress(AttributeError):  # another C library has no such function
            ctypes.CDLL(None).malloc_trim(0)
        return str(max(0, before - _resident_bytes())).encode()

    def _wake(self, tags: Sequence[str]) -> bytes | None:
        if self._on_device is not None and KV_CACHE in tags:
            self._on_device.restore_caches()
        if WEIGHTS in tags:
            needs_weights = self._without_weights
            if self._on_device is not None:
                needs_weights = self._on_device.restore_weights() and needs_weights
            if needs_weights:
                self._reload_weights()
                self._without_weights = False
                return b""
        return None

    def _reload_weights(self) -> None:
        """Load the model again, and copy its weights to the original addresses."""
        # lazy: the scheduler's process may have no torch
        from core.models.layers.loading import load_companion_model

        parts = self._parts
        reloaded = load_companion_model(parts.config, parts.source, self._registry, parts)
        for weight, loaded in zip(_tensors(parts.model), _tensors(reloaded), strict=True):
            # A weight in a mapped file has its contents already; writing would detach it.
            if not weight.is_contiguous() or not _are_same(weight, loaded):
                weight.copy_(loaded)
            loaded.data = loaded.new_empty(0)  # at once: two models may not fit in memory
        _count_reload(parts.model)


def _count_reload(model: Any) -> None:
    """Raise the version of the model's weights: the files may have changed meanwhile.

    Blocks that tiers hold of the weights before then have other keys.
    """
    owner = getattr(model, "weights", model)
    owner.weights_version = getattr(owner, "weights_version", 0) + 1
    owner.reloaded_version = owner.weights_version


def _named(tags: bytes) -> Sequence[str]:
    """Return the tags of a call; none mean all."""
    return tags.decode().split(",") if tags else TAGS


def _tensors(model: Any) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same bytes; False if the second is not contiguous."""
    import torch  # lazy: as above

    if not other.is_contiguous():
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def _release(address: int, num_bytes: int) -> None:
    """Return the whole pages of a range to the system; pages at the edges may be shared."""
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


EMPTY_S: Final = 60.0
"""Timeout for in-flight steps and stores to tiers to release all blocks, in seconds."""
POLL_S: Final = 0.01
"""Interval between two checks, in seconds."""


def checked_level(level: str) -> bytes:
    """Return a level as calls send it. Raises `InvalidRequest`."""
    if level not in LEVELS:
        raise InvalidRequest("level", f"is {' or '.join(LEVELS)}, not {level[:100]!r}.")
    return level.encode()


def checked_tags(tags: Iterable[str]) -> bytes:
    """Return tags as calls send them; none mean all. Raises `InvalidRequest`."""
    names = list(tags)
    if unknown := sorted({*names} - {*TAGS}):
        raise InvalidRequest("tags", f"are {' and '.join(TAGS)}, not {unknown[0][:100]!r}.")
    return ",".join(names).encode()


def sleep(llm: Any, level: int = 1) -> None:
    """Clear the prefix cache and release memory: the KV cache, and at level 2 the weights too.

    Requests are refused until `wake_up`. Raises `InvalidRequest` for another level, and while
    requests are unfinished.
    """
    data = checked_level(str(level))
    _empty(llm)
    llm.core.call(f"{NAME}.sleep", data)


def release_kv_cache_memory(llm: Any) -> None:
    """Clear the prefix cache and release the KV cache's memory; the weights stay usable.

    Requests are refused until `wake_up`. Raises `InvalidRequest` while the engine sleeps, and while
    requests are unfinished.
    """
    _empty(llm)
    llm.core.call(f"{NAME}.release")


def _empty(llm: Any) -> None:
    """Clear the prefix cache, and wait until no block is in use. Raises `InvalidRequest`."""
    until_s = time.monotonic() + EMPTY_S
    scheduler = llm.core.scheduler
    if scheduler.num_running or scheduler.num_waiting:
        raise InvalidRequest(
            "level", "cannot be reached while requests are unfinished; end them first."
        )
    while not (llm.reset_prefix_cache() and llm.core.call(f"{NAME}.idle").scheduler == b"1"):
        if time.monotonic() > until_s:
            raise InvalidRequest(
                "level",
                f"cannot be reached: blocks were still in use after {EMPTY_S:g} s; try again.",
            )
        llm.core.step()  # lets tiers finish their transfers
        time.sleep(POLL_S)


def wake_up(llm: Any, tags: Sequence[str] | None = None) -> None:
    """Restore "weights", "kv_cache" or both (None); the engine runs again once both are restored.

    Raises `InvalidRequest` for another tag. Raises `ModelError` or `PluginError` if the weights
    cannot be reloaded; the engine then stays asleep.
    """
    data = checked_tags(tags or ())
    llm.core.call(f"{NAME}.wake", data)
