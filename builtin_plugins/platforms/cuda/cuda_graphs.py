"""CUDA graphs of small steps, one per number of tokens; decode-only steps have their own.

A graph reads and writes fixed memory. So token ids, positions and attention plans of a step are
copied to static buffers before a replay (`AttentionBackend.graph_support`). Transfers between
pipeline stages are not part of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import torch
from core_kernels.recording import OpaqueValue

from core.api.models import ForwardBatch, Model

READ_BY_HOST: Final = ("rows", "starts", "counts", "prompt_lens")
"""Fields of a step that a captured model must not read."""
SMALLEST_SIZES: Final = (1, 2, 4)
MAX_CAPTURED_TOKENS: Final = 512
"""Largest captured step; launch overhead is small in larger ones."""

_Kind = tuple[int, int, bool]
"""Number of tokens, adapter set, and whether every row decodes."""

log = logging.getLogger(__name__)


def capture_sizes(max_tokens: int) -> tuple[int, ...]:
    """Return the capture sizes up to the first that holds `max_tokens`: 1, 2, 4, then by 8, from
    256 by 32.
    """
    steps = (*SMALLEST_SIZES, *range(8, 256, 8), *range(256, MAX_CAPTURED_TOKENS + 1, 32))
    fitting = [size for size in steps if size < max_tokens]
    return (*fitting, *steps[len(fitting) : len(fitting) + 1])


class Recorder(Protocol):
    """Captures a function for replay."""

    def record(
        self, function: Callable[[], torch.Tensor]
    ) -> tuple[Callable[[], object], torch.Tensor]:
        """Return a replay function and the output tensor that it writes.

        The capture does not run the work. Raises `RuntimeError` for what cannot be captured.
        """


class GraphRecorder:
    """Captures CUDA graphs, which share one memory pool."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(
        self, function: Callable[[], torch.Tensor]
    ) -> tuple[Callable[[], object], torch.Tensor]:
        """Capture the function as a CUDA graph."""
        graph = torch.cuda.CUDAGraph()
        # Other threads may copy blocks meanwhile; their calls are not part of the capture.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = function()
        return graph.replay, out


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A captured step."""

    batch: ForwardBatch
    """Static buffers of the step."""
    plans: dict[int, Any]
    """Static plans, by the first layer that uses each."""
    received: torch.Tensor | None
    """Static buffer of the previous pipeline stage's output."""
    run: Callable[[], object]
    out: torch.Tensor


class _Refused(Exception):
    """The model reads host values that differ from step to step."""


class _ReadGuard:
    """Rejects a capture when the model reads a host value."""

    def refuse(self, reason: str) -> None:
        """Abort the capture."""
        raise _Refused(reason)


class CudaGraphModel:
    """Calls the model, or replays its CUDA graph for the same number of tokens.

    Plain calls are the reference.
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
        """`mixed`: capture mixed steps, too, if the attention backend's plans support it."""
        self._model: Any = model
        self._forward = getattr(model, "forward_stage", lambda batch, received: model(batch))
        self._sizes = frozenset(sizes)
        self._max_model_len = max_model_len
        self._recorder = recorder
        self._mixed = mixed
        self._moved = 0
        self._recorded: dict[_Kind, _Recorded] = {}
        self._seen: set[_Kind] = set()
        self._refused: set[int] = set()
        """Adapter sets that cannot be captured; 0: no adapters."""

    def __call__(self, batch: ForwardBatch) -> torch.Tensor:
        """Return the hidden states [num_tokens, hidden]."""
        if not hasattr(self._model, "forward_stage"):
            return self._run(batch, None)
        hidden: torch.Tensor = self._model.send(self._run(batch, self._model.receive(batch)))
        return hidden

    def _run(self, batch: ForwardBatch, received: torch.Tensor | None) -> torch.Tensor:
        """Return the output of this stage for that of the previous one."""
        moved = getattr(self._model, "storage_version", 0)
        if moved != self._moved:  # captured graphs hold stale addresses
            self._recorded.clear()
            self._moved = moved
        size = len(batch.input_ids)
        adapters = batch.adapter_set
        decodes = len(batch.counts) == len(batch.input_ids)
        kind = size, adapters, decodes
        if (
            adapters in self._refused
            or size not in self._sizes
            or not self._can_replay(batch, decodes)
        ):
            return self._forward(batch, received)
        recorded = self._recorded.get(kind)
        if recorded is None:
            if (
                kind not in self._seen
            ):  # a plain call first, which compiles kernels and warms up libraries
                self._seen.add(kind)
                return self._forward(batch, received)
            recorded = self._record(batch, received)
            if recorded is None:
                return self._forward(batch, received)
            self._forget_older(adapters)
            self._recorded[kind] = recorded
        recorded.batch.input_ids.copy_(batch.input_ids)
        recorded.batch.positions.copy_(batch.positions)
        if recorded.received is not None and received is not None:
            recorded.received.copy_(received)
        for layer, plan in recorded.plans.items():
            plan.copy_from(batch.attention[layer])
        recorded.run()
        return recorded.out.clone()

    def _record(self, batch: ForwardBatch, received: torch.Tensor | None) -> _Recorded | None:
        """Return the captured step; None if the model cannot be captured (not tried again)."""
        try:
            static = None if received is None else received.clone()
            # Kernels may recompile for other alignments.
            self._forward(self._own(batch)[0], static)
            own, plans = self._own(batch)
            run, out = self._recorder.record(lambda: self._forward(own, static))
        except (_Refused, RuntimeError) as error:
            self._refused.add(batch.adapter_set)
            log.info("steps are not recorded: %s", error)
            return None
        return _Recorded(own, plans, static, run, out)

    def _can_replay(self, batch: ForwardBatch, decodes: bool) -> bool:
        """Return whether a step has only the inputs of a captured step."""
        given = (
            batch.embeddings is None and batch.token_types is None and batch.rope_positions is None
        )
        if (
            not given
            or batch.item_states is not None
            or batch.entering
            or batch.adapted
            or batch.branched
            or not (decodes or self._mixed)
        ):
            return False
        return all(
            hasattr(plan, "to_static" if decodes else "to_static_for_any")
            for plan in batch.attention
        )

    def _forget_older(self, adapters: int) -> None:
        """Drop graphs of earlier adapter sets."""
        for kind in [kind for kind in self._recorded if adapters and kind[1] not in (0, adapters)]:
            del self._recorded[kind]

    def _own(self, batch: ForwardBatch) -> tuple[ForwardBatch, dict[int, Any]]:
        """Return the step with static buffers, and its plans by the first layer that uses each."""
        firsts: dict[int, int] = {}
        for layer, plan in enumerate(batch.attention):
            firsts.setdefault(id(plan), layer)
        name = "to_static" if len(batch.counts) == len(batch.input_ids) else "to_static_for_any"
        plans = {
            layer: getattr(batch.attention[layer], name)(self._max_model_len)
            for layer in firsts.values()
        }
        untold: dict[str, Any] = {
            name: OpaqueValue(name, getattr(batch, name), _ReadGuard()) for name in READ_BY_HOST
        }
        own = replace(
            batch,
            input_ids=batch.input_ids.clone(),
            positions=batch.positions.clone(),
            attention=[plans[firsts[id(plan)]] for plan in batch.attention],
            **untold,
        )
        return own, plans
