"""Plugin of `engine bench step` to time a worker: no-op model, attention and sampling.

What remains is host work: row and block updates, uploads, inputs, sampling metadata, results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch

from core.api import EngineConfig, Entry, hookimpl
from core.api.models import AttentionInputs, BuildContext, ForwardBatch, Model, ModelSource
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import FullAttention, KVSpec, LayerKV

NAME: Final = "noop"
VOCAB: Final = 64
TOKEN: Final = 7


@hookimpl(tryfirst=True)
def engine_find_model(model: str, config: EngineConfig) -> ModelSource | None:
    """Return the no-op model."""
    return (
        ModelSource(NAME, NAME, None, weight_loader=NAME, max_model_len=1 << 20)
        if model == NAME
        else None
    )


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry(NAME, NoopArchitecture, "no-op model for measuring the worker")]


@hookimpl
def engine_weight_loaders() -> list[Entry]:
    """Return the weight loader."""
    return [Entry(NAME, "core.models.layers.weights:NoWeights", "for a model without weights")]


@hookimpl
def engine_attention_backends() -> list[Entry]:
    """Return the attention backend."""
    return [Entry(NAME, NoopAttention, "no-op attention", priority=-1000)]


@hookimpl
def engine_op_impls() -> list[Entry]:
    """Return the sampling ops."""
    made = {"best": noop_argmax, "truncate": noop_truncate, "draw": noop_sample}
    return [
        Entry(f"{op}/{NAME}", function, "returns a constant token", priority=1000)
        for op, function in made.items()
    ]


def noop_argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same token for every row."""
    return logits[:, 0], noop_sample(logits, logits, logits)


def noop_truncate(logits: torch.Tensor, cut: Any) -> torch.Tensor:
    """Return the logits."""
    return logits


def noop_sample(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the same token for every row."""
    return torch.full((len(logits),), TOKEN)


class NoopArchitecture:
    """The architecture of the no-op model."""

    vocab_size = VOCAB

    def __init__(self, hf_config: Any) -> None:
        pass

    def build(self, context: BuildContext) -> Model:
        """Return the model."""
        return NoopModel()


class NoopModel(torch.nn.Module):
    """A model with one KV layer that is never written."""

    vocab_size = VOCAB

    def __init__(self) -> None:
        super().__init__()
        self.kv_layers: Sequence[LayerKV] = [LayerKV("layers.0", FullAttention(1, 8, "float32"))]
        self._hidden = self._logits = torch.zeros(0, VOCAB)

    def bind_kv(self, caches: Sequence[Any]) -> None:
        """Ignore the caches."""

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Ignore the weights."""

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


class NoopAttention:
    """An attention backend without a plan."""

    graph_support = "none"

    def cache_shape(self, spec: KVSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Return the default shape."""
        return (num_blocks, spec.vectors, block_size, spec.kv_heads, spec.head_size)

    def prepare(self, inputs: AttentionInputs) -> AttentionInputs:
        """Return the inputs."""
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
