"""What every platform must hold to.

Where its device is missing, only what must work without is checked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from core.model_spec.kv import DTYPE_BYTES

if TYPE_CHECKING:
    from core.contracts.platforms import Platform
    from core.testing.conformance import Subject

_REQUESTED_BYTES: Final = 123 << 20


def check_is_named_like_its_entry(subject: Subject) -> None:
    """`--device` takes the entry's name, messages show the platform's."""
    name = _make(subject).name
    assert name == subject.entry.name, (
        f"the platform calls itself {name!r}, its entry {subject.entry.name!r}."
    )


def check_device_is_one_torch_knows(subject: Subject) -> None:
    """Tensors are made on it."""
    device = _make(subject).device
    try:
        torch.device(device)
    except RuntimeError as error:
        raise AssertionError(f"torch.device({device!r}) fails: {error}") from error


def check_availability_is_answered_without_start(subject: Subject) -> None:
    """It is called on every machine, also without the device, so it must not raise."""
    answer = _make(subject).is_available()
    assert isinstance(answer, bool), f"is_available() returned {answer!r}; return True or False."


def check_dtypes_are_known(subject: Subject) -> None:
    """`--dtype auto` must mean something for every checkpoint."""
    platform = _make(subject)
    for stored in DTYPE_BYTES:
        picked = platform.pick_dtype(stored)
        assert picked in DTYPE_BYTES, (
            f"pick_dtype({stored!r}) returned {picked!r}; return one of {sorted(DTYPE_BYTES)}."
        )


def check_facts_name_the_device(subject: Subject) -> None:
    """Entries of other kinds say with `when={"device": ...}` where they fit."""
    platform = _make(subject)
    if platform.is_available():
        facts = platform.facts()
        device = facts.get("device")
        assert device == platform.device, (
            f"facts() has device {device!r}, the platform's is {platform.device!r}."
        )


def check_requested_cache_size_is_used(subject: Subject) -> None:
    """`--kv-cache-memory-bytes` is exact; otherwise some memory must be left to serve with."""
    platform = _make(subject)
    if not platform.is_available():
        return
    config = subject.config
    requested = replace(config, cache=replace(config.cache, kv_cache_memory_bytes=_REQUESTED_BYTES))
    given = platform.kv_memory_bytes(requested, 0)
    assert given == _REQUESTED_BYTES, (
        f"{_REQUESTED_BYTES} bytes were requested, kv_memory_bytes returned {given}."
    )
    assert platform.kv_memory_bytes(config, 0) > 0, "kv_memory_bytes left nothing for the cache."


def check_memory_is_zeroed_bytes_on_the_device(subject: Subject) -> None:
    """Caches are views of it, in every dtype."""
    platform = _make(subject)
    if not platform.is_available():
        return
    memory = platform.allocate(4096)
    assert (memory.dtype, tuple(memory.shape)) == (torch.uint8, (4096,)), (
        "allocate must return uint8 [num_bytes]."
    )
    assert memory.device.type == torch.device(platform.device).type, (
        f"allocate used {memory.device}."
    )
    assert not memory.any(), "allocate must return zeroed memory."
    memory.view(torch.float32).fill_(1.0)


def _make(subject: Subject) -> Platform:
    target: Any = subject.target
    made: Platform = target()
    return made
