"""Small steps as one launch: the model is recorded once for each number of tokens, apart for steps
in which every row decodes.

A recording reads and writes the same memory each time. So ids, positions and what attention reads
of a step are copied to places of their own before it runs again; the backend's plan says how
(`AttentionBackend.graph_support`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import torch
from core_kernels.recording import Untold

from core.api import ForwardBatch, Model

READ_BY_HOST: Final = ("rows", "starts", "counts", "prompt_lens")
"""Of a step's facts those that a recorded model must not look at."""
LEAST_STEPS: Final = (1, 2, 4)
MOST_TOKENS: Final = 512
"""Of larger steps launches are a small part."""

_Kind = tuple[int, int, bool]
"""Of a step: how many tokens it has, which adapters, and whether every row decodes."""

log = logging.getLogger(__name__)


def ladder(most: int) -> tuple[int, ...]:
    """Return the sizes that are recorded, in rising order: by eights, from 256 on by thirty-twos,
    up to the first that holds
    so many tokens."""
    steps = (*LEAST_STEPS, *range(8, 256, 8), *range(256, MOST_TOKENS + 1, 32))
    fitting = [size for size in steps if size < most]
    return (*fitting, *steps[len(fitting) : len(fitting) + 1])


class Recorder(Protocol):
    """Keeps what a device was given to do."""

    def record(
        self, function: Callable[[], torch.Tensor]
    ) -> tuple[Callable[[], object], torch.Tensor]:
        """Return what does the function's work again on the same memory, and what it wrote its
        result to.

        It has not been done when this returns. Raises `RuntimeError` for what cannot be recorded.
        """


class GraphRecorder:
    """Records CUDA graphs, which share one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(
        self, function: Callable[[], torch.Tensor]
    ) -> tuple[Callable[[], object], torch.Tensor]:
        """Capture the function."""
        graph = torch.cuda.CUDAGraph()
        # Other threads may copy blocks meanwhile: what they ask of the device is no part of this.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = function()
        return graph.replay, out


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A step that can be done again."""

    batch: ForwardBatch
    """In memory of its own."""
    plans: dict[int, Any]
    """What stands for each plan of a batch, by the first layer that has it."""
    run: Callable[[], object]
    out: torch.Tensor


class _Refused(Exception):
    """The model reads what differs from step to step."""


class _Reading:
    """Who is told when a model reads what it must not."""

    def refuse(self, reason: str) -> None:
        """Give the recording up."""
        raise _Refused(reason)


class ReplayedModel:
    """Calls the model, or does again what it did in a step of as many tokens.

    Plain calls stay the reference.
    """

    def __init__(
        self,
        model: Model,
        sizes: Sequence[int],
        max_model_len: int,
        recorder: Recorder,
        *,
        mixed: bool,
    ) -> None:
        """`mixed`: not only steps in which every row decodes are recorded, where the attention
        backend's plans allow it.
        """
        self._model = model
        self._sizes = frozenset(sizes)
        self._max_model_len = max_model_len
        self._recorder = recorder
        self._mixed = mixed
        self._moved = 0
        self._recorded: dict[_Kind, _Recorded] = {}
        self._seen: set[_Kind] = set()
        self._refused: set[int] = set()
        """Adapters with which steps are not recorded; 0: without any."""

    def __call__(self, batch: ForwardBatch) -> torch.Tensor:
        """Return the hidden states [num_tokens, hidden]."""
        moved = getattr(self._model, "times_moved", 0)
        if moved != self._moved:  # what was recorded has the places of before
            self._recorded.clear()
            self._moved = moved
        size = len(batch.input_ids)
        adapters = batch.adapter_set
        decodes = len(batch.counts) == len(batch.input_ids)
        kind = size, adapters, decodes
        if (
            adapters in self._refused
            or size not in self._sizes
            or not self._is_kept(batch, decodes)
        ):
            return self._model(batch)
        recorded = self._recorded.get(kind)
        if recorded is None:
            if (
                kind not in self._seen
            ):  # kernels are compiled, and libraries get ready, in a plain call
                self._seen.add(kind)
                return self._model(batch)
            recorded = self._record(batch)
            if recorded is None:
                return self._model(batch)
            self._forget_older(adapters)
            self._recorded[kind] = recorded
        recorded.batch.input_ids.copy_(batch.input_ids)
        recorded.batch.positions.copy_(batch.positions)
        for layer, plan in recorded.plans.items():
            plan.take(batch.attention[layer])
        recorded.run()
        return recorded.out.clone()

    def _record(self, batch: ForwardBatch) -> _Recorded | None:
        """Return the step recorded; None, and never again, where the model cannot be."""
        try:
            self._model(
                self._own(batch)[0]
            )  # a kernel may be compiled once more for places that lie otherwise
            own, plans = self._own(batch)
            run, out = self._recorder.record(lambda: self._model(own))
        except (_Refused, RuntimeError) as error:
            self._refused.add(batch.adapter_set)
            log.info("steps are not recorded: %s", error)
            return None
        return _Recorded(own, plans, run, out)

    def _is_kept(self, batch: ForwardBatch, decodes: bool) -> bool:
        """Say whether a step has nothing that a recorded one has not."""
        given = (
            batch.embeddings is None and batch.token_types is None and batch.rope_positions is None
        )
        if (
            not given
            or batch.entering
            or batch.adapted
            or batch.branched
            or not (decodes or self._mixed)
        ):
            return False
        return all(hasattr(plan, "kept" if decodes else "kept_for_any") for plan in batch.attention)

    def _forget_older(self, adapters: int) -> None:
        """Let go of what was recorded with adapters that were set before these."""
        for kind in [kind for kind in self._recorded if adapters and kind[1] not in (0, adapters)]:
            del self._recorded[kind]

    def _own(self, batch: ForwardBatch) -> tuple[ForwardBatch, dict[int, Any]]:
        """Return the step in memory of its own, and its plans by the first layer that has each."""
        firsts: dict[int, int] = {}
        for layer, plan in enumerate(batch.attention):
            firsts.setdefault(id(plan), layer)
        name = "kept" if len(batch.counts) == len(batch.input_ids) else "kept_for_any"
        plans = {
            layer: getattr(batch.attention[layer], name)(self._max_model_len)
            for layer in firsts.values()
        }
        untold: dict[str, Any] = {
            name: Untold(name, getattr(batch, name), _Reading()) for name in READ_BY_HOST
        }
        own = replace(
            batch,
            input_ids=batch.input_ids.clone(),
            positions=batch.positions.clone(),
            attention=[plans[firsts[id(plan)]] for plan in batch.attention],
            **untold,
        )
        return own, plans
