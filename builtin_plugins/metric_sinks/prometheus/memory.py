"""What each process says of its memory, made into numbers that add up to what it has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from builtin_plugins.metric_sinks.prometheus.system import heap_bytes, resident_bytes
from core.contracts.spreads import Spread

API: Final = "api"
FREE_HEAP: Final = "free_heap"
OTHER: Final = "other"

Sizes = dict[str, tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """One process: what it has, and of that what each owner has and may have."""

    process: str
    resident: int
    owners: Sizes
    faults: Mapping[str, Sequence[Any]]
    """What plugins have raised in it (`core.contracts.faults`)."""
    seconds: Mapping[str, float]
    """How long calls of plugins took in it (`core.contracts.times`)."""


def processes(
    owners: Mapping[str, tuple[int, int]],
    engine: Sequence[bytes],
    faults: Mapping[str, Sequence[Any]] | None = None,
    seconds: Mapping[str, float] | None = None,
) -> Iterator[ProcessMemory]:
    """Yield this process, whose `owners`, `faults` and `seconds` are given, and those that have
    answered, each once.

    Halves of a feature that are in one process say the same; an engine in this process adds to it.
    """
    answers = [msgspec.json.decode(answer) for answer in engine]
    here = resident_bytes(), heap_bytes()[1]
    seen = set()
    for answer in answers:
        if answer["pid"] not in seen:
            seen.add(answer["pid"])
            of_plugins = answer.get("faults") or {}, answer.get("seconds") or {}
            yield _whole(
                answer["process"],
                answer["resident"],
                answer["heap_free"],
                answer["owners"],
                *of_plugins,
            )
    if os.getpid() not in seen:
        yield _whole(API, *here, owners, faults or {}, seconds or {})


def infos(engine: Sequence[bytes]) -> dict[str, dict[str, str]]:
    """Return what features say of themselves in those that have answered: labels by metric."""
    return {
        name: labels
        for answer in engine
        for name, labels in msgspec.json.decode(answer).get("infos", {}).items()
    }


def numbers(engine: Sequence[bytes]) -> dict[str, float]:
    """Return what features count in those that have answered, by metric."""
    return {
        name: value
        for answer in engine
        for name, value in msgspec.json.decode(answer).get("numbers", {}).items()
    }


def spreads(engine: Sequence[bytes]) -> dict[str, Spread]:
    """Return the histograms of features in those that have answered, by metric."""
    told = (msgspec.json.decode(answer).get("spreads", {}) for answer in engine)
    return {name: Spread(*spread) for found in told for name, spread in found.items()}


def _whole(
    process: str,
    resident: int,
    free: int,
    owners: Mapping[str, Sequence[int]],
    faults: Mapping[str, Sequence[Any]],
    seconds: Mapping[str, float],
) -> ProcessMemory:
    sizes: Sizes = {owner: (now, most) for owner, (now, most) in owners.items()}
    sizes[FREE_HEAP] = free, None
    named = sum(now for now, _ in sizes.values())
    sizes[OTHER] = max(0, resident - named), None
    return ProcessMemory(process, resident, sizes, faults, seconds)
