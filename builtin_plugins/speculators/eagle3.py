"""EAGLE-3: a layer that reads a token's embedding beside a product of hidden states of several of
the model's layers.

Its vocabulary may be a part of the model's: the checkpoint says how far each of its tokens is from
the model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import nn

from builtin_plugins.speculators.chain import Chain
from builtin_plugins.speculators.eagle import rotary_of
from builtin_plugins.speculators.trees import likely_tokens
from core.api import ConfigError, LayerKV, WeightNames
from core.models.layers.attention import Attention
from core.models.layers.embedding import Embedding, Head
from core.models.layers.linear import Linear, Slice
from core.models.layers.mlp import Mlp
from core.models.layers.norm import make_norm
from core.models.layers.weights import WeightMap

if TYPE_CHECKING:
    from core.api import AttentionSpec, BuildContext, DecoderSpec, ForwardBatch, MlpSpec, NormSpec
    from core.contracts.scheduling import LoadedParts
    from core.model_spec.kv import CacheSpec
    from core.models.layers.decoder import Decoder
    from core.models.layers.state import LayerCache

RENAME: Final = ((r"^model\.", ""), (r"^midlayer\.", "layers.0."))
LAYER: Final = "layers.0"


class Eagle3(Chain):
    """Reads the stream before three layers of the model, those that config.json states or the usual
    ones.
    """

    def _build(self, parts: LoadedParts, spec: DecoderSpec) -> Sequence[LayerKV]:
        source, stated = self._checkpoint()
        inner = stated.get("transformer_layer_config") or stated
        own = self._decoder(inner)
        if len(own.layers) != 1:
            raise ConfigError(
                f"--speculative-config.model {source.name!r} has {len(own.layers)} layers; one is "
                "read."
            )
        taps = _taps(stated, len(spec.layers))
        self._target.tap(taps)
        self._width = spec.hidden_size
        names = WeightMap(rename=RENAME)
        stored = {names.renamed(name): shape for name, shape in self._stored(source).items()}
        normed = bool(stated.get("norm_before_residual", False))
        width = len(taps) * spec.hidden_size
        self._head = Eagle3Head(own, stored, width, self._target, parts.context, normed=normed)
        self._fill(self._head.weights, source)
        if (
            self._head.to_model is not None
            and int(self._head.to_model.max()) >= self._target.vocab_size
        ):
            raise ConfigError(
                f"--speculative-config.model {source.name!r} guesses tokens beyond the model's "
                f"{self._target.vocab_size}: it "
                "is a head of another model."
            )
        return self._layers(parts)

    def seen(self, batch: ForwardBatch, hidden: torch.Tensor) -> None:
        """Keep the streams that are read."""
        super().seen(batch, hidden[:, self._width :])


def _taps(stated: Mapping[str, Any], num_layers: int) -> list[int]:
    listed = stated.get("eagle_aux_hidden_state_layer_ids")
    if listed is None:
        listed = (stated.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    usual = (2, num_layers // 2, num_layers - 3)
    return sorted({max(0, min(int(layer), num_layers)) for layer in listed or usual})


class Eagle3Head(nn.Module):
    """A `ChainHead`."""

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
        """`stored` are the checkpoint's shapes; `normed`: the stream goes on from the normalised
        hidden state.
        """
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
        attention = replace(own, reads=2 * hidden)
        self.attention = Attention(
            attention, hidden, names, LAYER, rotary_of(spec, context, weights), context, weights
        )
        self.mlp = Mlp(feeds, hidden, names, LAYER, context, weights)
        self.kv_layers = [LayerKV(LAYER, cast("CacheSpec", self.attention.kv_spec))]
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
        """Take the cache."""
        self.attention.cache = caches[0]  # type: ignore[assignment]

    def embedded(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the embedding of tokens."""
        return self._target.embedded(token_ids) if self.embed is None else self.embed(token_ids)

    def first(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return one hidden state of several."""
        read: torch.Tensor = self.fc(hidden)
        return read

    def forward(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        plans: Sequence[Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the head reads, and what the next step does."""
        normed = self.hidden_norm(hidden)
        stream = normed if self._normed else hidden
        x = torch.cat((self.token_norm(embedded), normed), dim=-1)
        stream = stream + self.attention(x, positions, plans[0])
        stream = stream + self.mlp(self.mlp_norm(stream))
        return self.final_norm(stream), stream

    def best(self, out: torch.Tensor, count: int) -> torch.Tensor:
        """Return the most likely tokens, as the model counts them."""
        best = likely_tokens(
            self._target.logits(out) if self.head is None else self.head(out), count
        )
        return best if self.to_model is None else self.to_model[best]
