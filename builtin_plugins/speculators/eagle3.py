"""EAGLE-3: one layer over a token's embedding and a projection of several layers' hidden states.

Its vocabulary may be a subset of the target's: the checkpoint holds the offset of each token id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import nn

from builtin_plugins.speculators.chain import ChainSpeculator
from builtin_plugins.speculators.draft_trees import top_tokens
from builtin_plugins.speculators.eagle import rotary_of
from core.api import ConfigError
from core.model_spec.kv import LayerKV
from core.model_spec.names import WeightNames
from core.models.layers.attention import Attention
from core.models.layers.embedding import Embedding, Head
from core.models.layers.linear import Linear, Slice
from core.models.layers.mlp import Mlp
from core.models.layers.norm import make_norm
from core.models.layers.weights import WeightMap

if TYPE_CHECKING:
    from core.api.execution import LoadedParts
    from core.api.models import BuildContext, ForwardBatch
    from core.model_spec.attention import AttentionSpec, NormSpec
    from core.model_spec.decoder import DecoderSpec
    from core.model_spec.kv import CacheSpec
    from core.model_spec.layer import MlpSpec
    from core.models.layers.decoder import Decoder
    from core.models.layers.state import LayerCache

RENAME: Final = ((r"^model\.", ""), (r"^midlayer\.", "layers.0."))
LAYER: Final = "layers.0"


class Eagle3(ChainSpeculator):
    """Method `eagle3`: reads the residual stream before three layers of the target."""

    def _build(self, parts: LoadedParts, spec: DecoderSpec) -> Sequence[LayerKV]:
        source, config = self._checkpoint()
        own = self._decoder_spec(config.get("transformer_layer_config") or config)
        if len(own.layers) != 1:
            raise ConfigError(
                f"--speculative-config.model {source.name!r}: got {len(own.layers)} layers; "
                "expected one."
            )
        captured = _captured_layers(config, len(spec.layers))
        self._target.capture_hidden_states(captured)
        self._width = spec.hidden_size
        names = WeightMap(rename=RENAME)
        shapes = self._stored_shapes(source)
        stored = {names.renamed(name): shape for name, shape in shapes.items()}
        normed = bool(config.get("norm_before_residual", False))
        width = len(captured) * spec.hidden_size
        self._head = Eagle3Head(own, stored, width, self._target, parts.context, normed=normed)
        self._load_weights(self._head.weights, source)
        to_model = self._head.to_model
        if to_model is not None and int(to_model.max()) >= self._target.vocab_size:
            raise ConfigError(
                f"--speculative-config.model {source.name!r} drafts tokens beyond the target's "
                f"{self._target.vocab_size}. Use a head of this model."
            )
        return self._layers(parts)

    def on_hidden_states(self, batch: ForwardBatch, hidden: torch.Tensor) -> None:
        """Add the captured hidden states to the history."""
        super().on_hidden_states(batch, hidden[:, self._width :])


def _captured_layers(config: Mapping[str, Any], num_layers: int) -> list[int]:
    listed = config.get("eagle_aux_hidden_state_layer_ids")
    if listed is None:
        listed = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    default = (2, num_layers // 2, num_layers - 3)
    return sorted({max(0, min(int(layer), num_layers)) for layer in listed or default})


class Eagle3Head(nn.Module):
    """The `ChainHead` of EAGLE-3."""

    def __init__(
        self,
        spec: DecoderSpec,
        stored: Mapping[str, tuple[int, ...]],
        width: int,
        target: Decoder,
        context: BuildContext,
        *,
        normed: bool,
    ) -> None:
        """`stored`: the checkpoint's shapes. `normed`: the residual is the normed hidden state."""
        super().__init__()
        hidden = spec.hidden_size
        layer = spec.layers[0]
        norm = cast("NormSpec", spec.norm)
        own = cast("AttentionSpec", layer.attention)
        feeds = cast("MlpSpec", layer.mlp)
        self.weights = weights = WeightMap(rename=RENAME, ignored=("*.rotary_emb.inv_freq", "t2d"))
        self._normed = normed
        self._target = target
        names = WeightNames()
        self.fc = Linear(
            context, weights, "fc", width, [Slice("out", hidden)], bias="fc.bias" in stored
        )
        self.token_norm = make_norm(norm, hidden, context, weights, f"{LAYER}.input_layernorm")
        self.hidden_norm = make_norm(norm, hidden, context, weights, f"{LAYER}.hidden_norm")
        self.mlp_norm = make_norm(
            norm, hidden, context, weights, f"{LAYER}.post_attention_layernorm"
        )
        self.final_norm = make_norm(norm, hidden, context, weights, "norm")
        attention = replace(own, input_size=2 * hidden)
        self.attention = Attention(
            attention, hidden, names, LAYER, rotary_of(spec, context, weights), context, weights
        )
        self.mlp = Mlp(feeds, hidden, names, LAYER, context, weights)
        self.kv_layers = [LayerKV(LAYER, cast("CacheSpec", self.attention.kv_spec))]
        self._add_own_vocabulary(stored, hidden, context)

    def _add_own_vocabulary(
        self, stored: Mapping[str, tuple[int, ...]], hidden: int, context: BuildContext
    ) -> None:
        """Add the embedding, the LM head and the token map that the checkpoint holds."""
        weights = self.weights
        self.embed: Embedding | None = None
        if "embed_tokens.weight" in stored:
            self.embed = Embedding(
                stored["embed_tokens.weight"][0], hidden, context, weights, "embed_tokens"
            )
        self.head: Head | None = None
        if "lm_head.weight" in stored:
            self.head = Head(stored["lm_head.weight"][0], hidden, context, weights, "lm_head")
        self.to_model: torch.Tensor | None = None
        if "d2t" in stored:
            self.to_model = ids = torch.arange(*stored["d2t"])

            def move(distances: torch.Tensor) -> None:
                ids.add_(distances)

            weights.add("d2t", stored["d2t"], move)

    def bind_kv(self, caches: Sequence[LayerCache]) -> None:
        """Set the cache of the layer."""
        self.attention.cache = caches[0]  # type: ignore[assignment]

    def embedded(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of tokens."""
        return self._target.embedded(token_ids) if self.embed is None else self.embed(token_ids)

    def first(self, hidden: torch.Tensor) -> torch.Tensor:
        """Project the captured hidden states to one."""
        projected: torch.Tensor = self.fc(hidden)
        return projected

    def forward(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        plans: Sequence[Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the input of `best`, and the hidden states for the next step."""
        normed = self.hidden_norm(hidden)
        stream = normed if self._normed else hidden
        x = torch.cat((self.token_norm(embedded), normed), dim=-1)
        stream = stream + self.attention(x, positions, plans[0])
        stream = stream + self.mlp(self.mlp_norm(stream))
        return self.final_norm(stream), stream

    def best(self, out: torch.Tensor, count: int) -> torch.Tensor:
        """Return the top tokens, as token ids of the target."""
        best = top_tokens(self._target.logits(out) if self.head is None else self.head(out), count)
        return best if self.to_model is None else self.to_model[best]
