"""EAGLE: layers of Llama's kind behind a product of a token's embedding and the model's hidden
state before it.

Embedding and head are the model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from builtin_plugins.speculators.chain import Chain
from builtin_plugins.speculators.trees import likely_tokens
from core.api import ConfigError, LayerKV, WeightNames
from core.models.layers.block import Block
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import optional_norm
from core.models.layers.rotary import Rotary
from core.models.layers.stream import Step, join
from core.models.layers.weights import WeightMap

if TYPE_CHECKING:
    from core.api import BuildContext, DecoderSpec
    from core.contracts.scheduling import LoadedParts
    from core.models.layers.decoder import Decoder
    from core.models.layers.norm import Norm
    from core.models.layers.state import LayerCache

RENAME: Final = (
    (r"^model\.", ""),
    (r"^fusion_fc\.", "fc."),
    (r"^transformer\.", "layers.0."),
    (r"^embedding_layernorm\.", "enorm."),
    (r"^(?:pre_lm_head_layernorm|lm_head_layernorm)\.", "norm."),
)
"""Other names that checkpoints give to the same."""
IGNORED: Final = ("embed_tokens.*", "lm_head.*", "*.rotary_emb.inv_freq", "t2d", "d2t")


class Eagle(Chain):
    """Reads what the model's head reads."""

    def _build(self, parts: LoadedParts, spec: DecoderSpec) -> Sequence[LayerKV]:
        source, stated = self._checkpoint()
        inner = stated.get("transformer_layer_config") or stated.get("model") or stated
        own = self._decoder(inner if isinstance(inner, Mapping) else stated)
        if own.hidden_size != spec.hidden_size:
            raise ConfigError(
                f"--speculative-config.model {source.name!r} continues hidden states of "
                f"{own.hidden_size} numbers, those of "
                f"the model have {spec.hidden_size}: it is a head of another model."
            )
        names = WeightMap(rename=RENAME)
        stored = {names.renamed(name) for name in self._stored(source)}
        self._head = EagleHead(own, stored, parts.model, parts.context)  # type: ignore[arg-type]  # a `Decoder`, as `loaded` has seen
        self._fill(self._head.weights, source)
        return self._layers(parts)


class EagleHead(nn.Module):
    """A `ChainHead`.

    The first layer reads the product without a norm, mostly; `stored` says which norms there are.
    """

    def __init__(
        self, spec: DecoderSpec, stored: set[str], target: Decoder, context: BuildContext
    ) -> None:
        super().__init__()
        hidden = spec.hidden_size
        self.weights = weights = WeightMap(rename=RENAME, ignored=IGNORED)
        self._logits = target.logits
        self.embedded = target.embedded

        def optional(name: str) -> Norm | None:
            return optional_norm(
                spec.norm if f"{name}.weight" in stored else None, hidden, context, weights, name
            )

        self.token_norm, self.hidden_norm, self.final_norm = (
            optional(name) for name in ("enorm", "hnorm", "norm")
        )
        bias = "fc.bias" in stored
        self.fc = Linear(context, weights, "fc", 2 * hidden, [Slice("out", hidden)], bias=bias)
        names = replace(WeightNames(), layer="layers.{}")
        spec = replace(spec, names=names)
        self.rotary = rotary_of(spec, context, weights)
        blocks = []
        for index, facts in enumerate(spec.layers):
            if f"layers.{index}.input_layernorm.weight" not in stored:
                facts = replace(facts, attention_in=None)
            block = Block(facts, spec, names.layer.format(index), self.rotary, context, weights)
            block.attention_plan = index
            blocks.append(block)
        self.layers = nn.ModuleList(blocks)
        self.kv_layers = [
            LayerKV(f"layers.{i}", block.attention.kv_spec) for i, block in enumerate(blocks)
        ]  # type: ignore[union-attr,arg-type]

    def bind_kv(self, caches: Sequence[LayerCache]) -> None:
        """Take the cache of each layer."""
        for block, cache in zip(self.layers, caches, strict=True):
            block.attention.cache = cache  # type: ignore[union-attr]

    def first(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return them as they are."""
        return hidden

    def forward(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        plans: Sequence[Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the head reads, and what the next step does."""
        if self.token_norm is not None:
            embedded = self.token_norm(embedded)
        if self.hidden_norm is not None:
            hidden = self.hidden_norm(hidden)
        x = self.fc(torch.cat((embedded, hidden), dim=-1))
        residual = None
        step = Step(positions, plans)
        for block in self.layers:
            x, residual = block(x, residual, step)
        out, stream = join(self.final_norm, x, residual)
        return out, stream

    def best(self, out: torch.Tensor, count: int) -> torch.Tensor:
        """Return the most likely tokens, by the model's own head."""
        return likely_tokens(self._logits(out), count)


def rotary_of(spec: DecoderSpec, context: BuildContext, weights: WeightMap) -> Rotary | None:
    """Return what turns queries and keys of its layers; its table is made once the weights are in."""
    attention = spec.layers[0].attention
    if attention is None or attention.rope is None:
        return None
    rotary = Rotary(attention.rope, spec.max_positions, context)
    weights.at_end(rotary.finish)
    return rotary
