"""The plugin `core.testing.fake_model`: a tiny model without files; its tokens depend on the whole
context.

For tests of what surrounds a model. `LLM("fake:", plugins=["core.testing.fake_model"])` serves it;
every run computes the same numbers. The token `NAN_TOKEN` makes its own sequence, and no other,
non-finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from core.api import EngineConfig, Entry, hookimpl
from core.api.models import BuildContext, ForwardBatch, Model, ModelSource
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import FullAttention, KVSpec, LayerKV, SlidingWindow
from core.models.dtypes import dtype_name

NAN_TOKEN: Final = 1
_HEADS = 2
_KV_HEADS = 1
_HEAD_SIZE = 8


@dataclass(frozen=True, slots=True)
class FakeConfig:
    """Facts of one fake model."""

    vocab_size: int = 64
    window: int | None = None
    """Window of its second layer; None: it has one layer only."""
    sharpness: float = 2.0
    """Scale of the logits: more makes tokens more certain."""


def fake_source(config: FakeConfig | None = None, max_model_len: int = 256) -> ModelSource:
    """Return the source of a fake model."""
    return ModelSource(
        name="fake:",
        architecture="FakeModel",
        hf_config=config or FakeConfig(),
        max_model_len=max_model_len,
        weight_loader="fake",
        origin="test",
    )


@hookimpl(tryfirst=True)
def engine_find_model(model: str, config: EngineConfig) -> ModelSource | None:
    """Return the source of `fake:`."""
    return fake_source() if model == "fake:" else None


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [
        Entry("FakeModel", FakeArchitecture, "one or two attention layers between random matrices")
    ]


@hookimpl
def engine_weight_loaders() -> list[Entry]:
    """Return the loader of a model without weights."""
    return [
        Entry(
            "fake",
            "core.models.layers.weights:NoWeights",
            "for a model that makes its own weights",
        )
    ]


class FakeArchitecture:
    """`ModuleSpec` of the fake model."""

    def __init__(self, hf_config: FakeConfig) -> None:
        self._config = hf_config
        self.vocab_size = hf_config.vocab_size

    def build(self, context: BuildContext) -> Model:
        """Return the module."""
        return FakeModel(self._config, context)


class FakeModel(torch.nn.Module):
    """Embeds tokens, lets them attend, and multiplies by a random matrix."""

    def __init__(self, config: FakeConfig, context: BuildContext) -> None:
        super().__init__()
        self.vocab_size = config.vocab_size
        windows = [None] if config.window is None else [None, config.window]
        dtype = dtype_name(context.dtype)
        self.kv_layers: Sequence[LayerKV] = [
            LayerKV(f"layers.{i}", _spec(w, dtype)) for i, w in enumerate(windows)
        ]
        self._layers = [
            AttentionParams(_HEADS, _KV_HEADS, _HEAD_SIZE, _HEAD_SIZE**-0.5, window=w)
            for w in windows
        ]
        self._backend = context.attention
        self._dtype = context.dtype
        self._caches: Sequence[torch.Tensor] = ()
        generator = torch.Generator().manual_seed(0)
        embedding = torch.randn(config.vocab_size, _HEADS * _HEAD_SIZE, generator=generator)
        head = (
            torch.randn(config.vocab_size, _HEADS * _HEAD_SIZE, generator=generator)
            * config.sharpness
        )
        embedding[NAN_TOKEN] = float("nan")
        self.embedding: torch.Tensor
        self.head: torch.Tensor
        self.register_buffer("embedding", embedding.to(context.device))
        self.register_buffer("head", head.to(context.device))

    def bind_kv(self, caches: Sequence[torch.Tensor]) -> None:
        """Take the caches."""
        self._caches = caches

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take no weights."""
        assert not list(tensors), "the fake model makes its own weights"

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Return hidden states [num_tokens, 16] of the step's tokens."""
        hidden = self.embedding[batch.input_ids]
        angles = batch.positions[:, None] * torch.arange(
            1, hidden.shape[1] + 1, device=hidden.device
        )
        hidden = hidden + (angles * 0.1).sin()
        for params, cache, plan in zip(self._layers, self._caches, batch.attention, strict=False):
            query = hidden.view(-1, _HEADS, _HEAD_SIZE).to(self._dtype)
            key = query[:, :_KV_HEADS].contiguous()
            found: Any = self._backend.attend(params, query, key, key.flip(-1), cache, plan)
            hidden = hidden + found.reshape(hidden.shape).float()
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [n, vocab]."""
        # Row by row sums do not depend on how many rows there are, as those of a matrix product
        # may.
        return (hidden[:, None] * self.head).sum(dim=-1)


def _spec(window: int | None, dtype: str) -> KVSpec:
    if window is None:
        return FullAttention(_KV_HEADS, _HEAD_SIZE, dtype)
    return SlidingWindow(_KV_HEADS, _HEAD_SIZE, dtype, window=window)
