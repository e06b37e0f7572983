"""The plugin that `engine bench step` loads to time a worker: a model, attention and sampling ops
that compute nothing.

What is left of a step is the host's work for it: rows and blocks taken over, numbers brought to the
device, inputs, parameters of sampling, results read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch

from core.api import (
    AttentionInputs,
    AttentionParams,
    BuildContext,
    EngineConfig,
    Entry,
    ForwardBatch,
    FullAttention,
    KVSpec,
    LayerKV,
    Model,
    ModelSource,
    hookimpl,
)

NAME: Final = "still"
VOCAB: Final = 64
TOKEN: Final = 7


@hookimpl(tryfirst=True)
def engine_find_model(model: str, config: EngineConfig) -> ModelSource | None:
    """Know the model."""
    return (
        ModelSource(NAME, NAME, None, weight_loader=NAME, max_model_len=1 << 20)
        if model == NAME
        else None
    )


@hookimpl
def engine_models() -> list[Entry]:
    """Give the architecture."""
    return [
        Entry(
            NAME, StillArchitecture, "computes nothing; for measuring the worker around the model"
        )
    ]


@hookimpl
def engine_weight_loaders() -> list[Entry]:
    """Give the loader of no weights."""
    return [Entry(NAME, "core.models.layers.no_weights:NoWeights", "for a model without weights")]


@hookimpl
def engine_attention_backends() -> list[Entry]:
    """Give the backend that attends to nothing."""
    return [Entry(NAME, StillAttention, "attends to nothing", priority=-1000)]


@hookimpl
def engine_op_impls() -> list[Entry]:
    """Give sampling that always takes the same token."""
    made = {"best": still_best, "truncate": still_truncate, "draw": still_draw}
    return [
        Entry(f"{op}/{NAME}", function, "takes the same token", priority=1000)
        for op, function in made.items()
    ]


def still_best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same token for every row."""
    return logits[:, 0], still_draw(logits, logits, logits)


def still_truncate(logits: torch.Tensor, cut: Any) -> torch.Tensor:
    """Return the logits."""
    return logits


def still_draw(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the same token for every row."""
    return torch.full((len(logits),), TOKEN)


class StillArchitecture:
    """Says what its model is."""

    vocab_size = VOCAB

    def __init__(self, hf_config: Any) -> None:
        pass

    def build(self, context: BuildContext) -> Model:
        """Return the model."""
        return StillModel()


class StillModel(torch.nn.Module):
    """One caching layer that is never written."""

    vocab_size = VOCAB

    def __init__(self) -> None:
        super().__init__()
        self.kv_layers: Sequence[LayerKV] = [LayerKV("layers.0", FullAttention(1, 8, "float32"))]
        self._hidden = self._logits = torch.zeros(0, VOCAB)

    def bind_kv(self, caches: Sequence[Any]) -> None:
        """Nothing is kept."""

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """There are none."""

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Return zeros."""
        if len(self._hidden) < len(batch.input_ids):
            self._hidden = torch.zeros(len(batch.input_ids), 1)
        return self._hidden[: len(batch.input_ids)]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return zeros."""
        if len(self._logits) < len(hidden):
            self._logits = torch.zeros(len(hidden), VOCAB)
        return self._logits[: len(hidden)]


class StillAttention:
    """Needs nothing planned."""

    graph_support = "none"

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return the plain shape."""
        return (num_blocks, spec.vectors, block_size, spec.kv_heads, spec.head_size)

    def prepare(self, inputs: AttentionInputs) -> AttentionInputs:
        """Return what it is given."""
        return inputs

    def attend(
        self,
        params: AttentionParams,
        query: torch.Tensor,
        key: torch.Tensor,
        value: Any,
        cache: Any,
        plan: Any,
    ) -> torch.Tensor:
        """Return the query."""
        return query
