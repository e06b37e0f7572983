"""MTP: the multi-token prediction layer of the target's checkpoint (DeepSeek V3, GLM 4.5 ...)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from builtin_plugins.speculators.chain import ChainSpeculator
from builtin_plugins.speculators.draft_trees import top_tokens
from core.api import ConfigError
from core.model_spec.decoder import MtpLayerSpec
from core.model_spec.kv import LayerKV
from core.models.layers.block import Block
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import make_norm, optional_norm
from core.models.layers.positions import Rotary
from core.models.layers.residual import ForwardContext, add_residual
from core.models.layers.weights import WeightMap

if TYPE_CHECKING:
    from core.api.execution import LoadedParts
    from core.api.models import BuildContext
    from core.model_spec.decoder import DecoderSpec
    from core.models.layers.decoder import Decoder
    from core.models.layers.state import LayerCache


class Mtp(ChainSpeculator):
    """Method `mtp`: drafts any number of tokens, as the layer continues its own hidden states."""

    def _build(self, parts: LoadedParts, spec: DecoderSpec) -> Sequence[LayerKV]:
        if spec.mtp is None:
            lacks = "which has no MTP layer, or lacks num_nextn_predict_layers in config.json"
            if spec.stream_width != spec.hidden_size:
                lacks = "with MTP layers that read several residual streams, which is not served"
            raise ConfigError(
                f"--speculative-config.method 'mtp': got {parts.source.name} "
                f"({parts.source.architecture}), {lacks}. Use ngram, suffix or draft_model."
            )
        self._head = MtpLayer(spec.mtp, self._target, parts.context)
        self._load_weights(self._head.weights, parts.source, spec.mtp.tensors)
        return self._layers(parts)


class MtpLayer(nn.Module):
    """The `ChainHead` of MTP: a layer over a token's embedding and the preceding hidden state."""

    def __init__(self, mtp: MtpLayerSpec, target: Decoder, context: BuildContext) -> None:
        super().__init__()
        spec = replace(target.spec, names=mtp.names or target.spec.names)
        hidden = spec.hidden_size
        self.weights = weights = WeightMap(rename=spec.names.rename, ignored=mtp.ignored)
        self._spec = mtp
        self._logits = target.logits
        self.embedded = target.embedded
        self.token_norm = make_norm(mtp.norm, hidden, context, weights, mtp.token_norm)
        self.hidden_norm = make_norm(mtp.norm, hidden, context, weights, mtp.hidden_norm)
        out = [Slice("out", hidden)]
        self.product = Linear(context, weights, mtp.product, 2 * hidden, out, bias=mtp.product_bias)
        rope = None if mtp.layer.attention is None else mtp.layer.attention.rope
        rotary = None if rope is None else Rotary(rope, spec.max_positions, context)
        self.block = Block(mtp.layer, spec, mtp.stored, rotary, context, weights)
        self.block.attention_plan = 0
        self.final_norm = optional_norm(
            mtp.norm if mtp.final_norm else None, hidden, context, weights, mtp.final_norm
        )
        kv_spec = self.block.attention.kv_spec  # type: ignore[union-attr]  # it has attention
        self.kv_layers = [LayerKV(mtp.stored, kv_spec)]  # type: ignore[arg-type]  # it caches
        if rotary is not None:
            weights.after_load(rotary.finish)

    def bind_kv(self, caches: Sequence[LayerCache]) -> None:
        """Set the cache of the layer."""
        self.block.attention.cache = caches[0]  # type: ignore[union-attr]

    def first(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states unchanged."""
        return hidden

    def forward(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        plans: Sequence[Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the input of `best`, and the hidden states for the next step."""
        read = [self.token_norm(embedded), self.hidden_norm(hidden)]
        x = self.product(torch.cat(read[::-1] if self._spec.hidden_first else read, dim=-1))
        x, residual = self.block(x, None, ForwardContext(positions, plans))
        out, stream = add_residual(self.final_norm, x, residual)
        return out, out if self._spec.continues_normed else stream

    def best(self, out: torch.Tensor, count: int) -> torch.Tensor:
        """Return the top tokens, with the target's LM head."""
        return top_tokens(self._logits(out), count)
