"""The model's own layer for further tokens, which its checkpoint has behind the others (DeepSeek
V3, GLM 4.5, Qwen3-Next ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from builtin_plugins.speculators.chain import Chain
from builtin_plugins.speculators.trees import likely_tokens
from core.api import AheadSpec, ConfigError, LayerKV
from core.models.layers.block import Block
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import make_norm, optional_norm
from core.models.layers.rotary import Rotary
from core.models.layers.stream import Step, join
from core.models.layers.weights import WeightMap

if TYPE_CHECKING:
    from core.api import BuildContext, DecoderSpec
    from core.contracts.scheduling import LoadedParts
    from core.models.layers.decoder import Decoder
    from core.models.layers.state import LayerCache


class Mtp(Chain):
    """Guesses any number of tokens with the one layer: it goes on from its own hidden states."""

    def _build(self, parts: LoadedParts, spec: DecoderSpec) -> Sequence[LayerKV]:
        if spec.ahead is None:
            raise ConfigError(
                f"--speculative-config.method 'mtp': {parts.source.name} "
                f"({parts.source.architecture}) has no layer for "
                "further tokens, or its config.json states none (num_nextn_predict_layers). Use "
                "ngram, suffix or draft_model."
            )
        self._head = AheadLayer(spec.ahead, parts.model, parts.context)  # type: ignore[arg-type]  # a `Decoder`, as `loaded` has seen
        self._fill(self._head.weights, parts.source, spec.ahead.tensors)
        return self._layers(parts)


class AheadLayer(nn.Module):
    """One layer behind a product of what is read of a token and of the hidden state before it; a
    `ChainHead`.
    """

    def __init__(self, ahead: AheadSpec, target: Decoder, context: BuildContext) -> None:
        super().__init__()
        spec = target.spec
        hidden = spec.hidden_size
        self.weights = weights = WeightMap(rename=spec.names.rename, ignored=ahead.ignored)
        self._spec = ahead
        self._logits = target.logits
        self.embedded = target.embedded
        self.token_norm = make_norm(ahead.norm, hidden, context, weights, ahead.token_norm)
        self.hidden_norm = make_norm(ahead.norm, hidden, context, weights, ahead.hidden_norm)
        out = [Slice("out", hidden)]
        self.product = Linear(
            context, weights, ahead.product, 2 * hidden, out, bias=ahead.product_bias
        )
        rope = None if ahead.layer.attention is None else ahead.layer.attention.rope
        rotary = None if rope is None else Rotary(rope, spec.max_positions, context)
        self.block = Block(ahead.layer, spec, ahead.stored, rotary, context, weights)
        self.block.attention_plan = 0
        self.final_norm = optional_norm(
            ahead.norm if ahead.final_norm else None, hidden, context, weights, ahead.final_norm
        )
        self.kv_layers = [LayerKV(ahead.stored, self.block.attention.kv_spec)]  # type: ignore[union-attr,arg-type]  # it attends to what is behind it
        if rotary is not None:
            weights.at_end(rotary.finish)

    def bind_kv(self, caches: Sequence[LayerCache]) -> None:
        """Take the cache."""
        self.block.attention.cache = caches[0]  # type: ignore[union-attr]

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
        read = [self.token_norm(embedded), self.hidden_norm(hidden)]
        x = self.product(torch.cat(read[::-1] if self._spec.hidden_first else read, dim=-1))
        x, residual = self.block(x, None, Step(positions, plans))
        out, stream = join(self.final_norm, x, residual)
        return out, out if self._spec.continues_normed else stream

    def best(self, out: torch.Tensor, count: int) -> torch.Tensor:
        """Return the most likely tokens, by the model's own head."""
        return likely_tokens(self._logits(out), count)
