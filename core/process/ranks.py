"""What an executor and the processes of its ranks say to each other. A rank runs `core.worker.rank:run`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from core.kv_spec import KVLayout, LayerKV
from core.process.messages import Beat, Failed, Stage
from core.step import StepPlan, StepResult, WorkerInfo


class Join(msgspec.Struct, frozen=True, tag=True):
    """Meet the others in this folder and load the model; the answer is `Loaded`."""

    folder: str


class Allocate(msgspec.Struct, frozen=True, tag=True):
    """Make the cache; the answer is `Allocated`."""

    layout: KVLayout
    first_layer: int
    """Index in the layout of the stage's first caching layer."""


class Run(msgspec.Struct, frozen=True, tag=True):
    """Run one step. The first rank of the last stage answers with `Done`, and every rank that fails with `StepFailed`."""

    plan: StepPlan


class Leave(msgspec.Struct, frozen=True, tag=True):
    """End the process."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The model is there."""

    info: WorkerInfo


class Allocated(msgspec.Struct, frozen=True, tag=True):
    """Plans can come."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """What a step produced."""

    result: StepResult


class StepFailed(msgspec.Struct, frozen=True, tag=True):
    """A step raised; the rank takes the next one."""

    step: int
    message: str
    """Empty: as the last stage says."""


ToRank = Join | Allocate | Run | Leave
FromRank = Loaded | Allocated | Done | StepFailed | Beat | Stage | Failed


def combine(infos: Sequence[WorkerInfo], tensor: int) -> WorkerInfo:
    """Return what ranks, counted stage by stage with `tensor` in each, are together.

    Its KV memory is what all layers of one rank per stage may take, such that no rank exceeds its own.
    """
    layers = [layer for info in infos[::tensor] for layer in info.layers]
    shares = [_share(info.layers, layers) for info in infos]
    return WorkerInfo(
        layers=layers,
        kv_memory_bytes=min(int(info.kv_memory_bytes / share) for info, share in zip(infos, shares, strict=True)),
        vocab_size=infos[-1].vocab_size,
        weight_bytes=sum(info.weight_bytes for info in infos),
        device=infos[0].device,
    )


def _share(own: Iterable[LayerKV], layers: Iterable[LayerKV]) -> float:
    """Return the largest part of the cache that these layers can need: of unlike layers, one slot serves several."""
    counts = Counter(layer.spec for layer in layers)
    fewest: dict[int, int] = {}
    for spec, count in counts.items():
        fewest[spec.token_bytes] = min(count, fewest.get(spec.token_bytes, count))
    held = Counter(layer.spec.token_bytes for layer in own)
    return max((min(1.0, count / fewest[size]) for size, count in held.items()), default=1.0)
