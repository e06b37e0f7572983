"""EAGLE: layers over a token's embedding and the preceding hidden state.

The layers are those of Llama, or of the target's family. Embedding and LM head are the target's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from builtin_plugins.speculators.chain import ChainSpeculator
from builtin_plugins.speculators.checkpoints import HEAD_ARCHITECTURE
from builtin_plugins.speculators.draft_trees import top_tokens
from core.api import ConfigError
from core.model_spec.kv import LayerKV
from core.models.layers.block import Block
from core.models.layers.linear import Linear, Slice
from core.models.layers.norm import optional_norm
from core.models.layers.positions import Rotary
from core.models.layers.residual import ForwardContext, add_residual
from core.models.layers.weights import WeightMap

if TYPE_CHECKING:
    from core.api.execution import LoadedParts
    from core.api.models import BuildContext
    from core.model_spec.decoder import DecoderSpec
    from core.models.layers.decoder import Decoder
    from core.models.layers.norm import Norm
    from core.models.layers.state import LayerCache

RENAME: Final = (
    (r"^model\.", ""),
    (r"^fusion_fc\.", "fc."),
    (r"^transformer\.", "layers.0."),
    (r"^embedding_layernorm\.", "enorm."),
    (r"^(?:pre_lm_head_layernorm|lm_head_layernorm)\.", "norm."),
    (r"^eagle_layers\.", "layers."),
    (r"^input_norm1\.", "enorm."),
    (r"^input_norm2\.", "hnorm."),
)
"""Alternative tensor names of checkpoints."""
LATENT: Final[Mapping[str, Any]] = {
    "architecture": "DeepseekV3ForCausalLM",
    "first_k_dense_replace": 0,
    "mlp_layer_types": None,
    "num_nextn_predict_layers": 0,
}
"""Changes of the config of a head with latent attention (`EagleDeepSeekMTPModel`). Its layers come
after the target's, so none is one of the first, dense ones.
"""
IGNORED: Final = ("embed_tokens.*", "lm_head.*", "*.rotary_emb.inv_freq", "t2d", "d2t")


@dataclass(frozen=True, slots=True)
class Family:
    """How the heads of one family of models differ from those of Llama."""

    architecture: str = HEAD_ARCHITECTURE
    router: str = ""
    """Tensor of a layer with experts; empty: layers are dense."""
    has_norm: bool = True
    """Whether the head's final norm is used."""
    continues_normed: bool = False
    """Whether the next draft token reads the normalised hidden state."""


_LLAMA4: Final = Family("Llama4ForCausalLM", "feed_forward.router.weight", continues_normed=True)
FAMILIES: Final[Mapping[str, Family]] = {
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "minicpm": Family("MiniCPMForCausalLM", has_norm=False),
}
"""Families by the model_type of a head's config.json; other heads have layers of Llama, or latent
ones.
"""


def _expert_fields(family: Family, stored: Iterable[str], num_layers: int) -> Mapping[str, Any]:
    """Return the fields that say which layers have experts, by what the checkpoint stores.

    The config counts layers from the target's first one.
    """
    if not family.router:
        return {}
    pattern = re.compile(rf"layers\.(\d+)\.{re.escape(family.router)}")
    sparse = [int(found[1]) for name in stored if (found := pattern.fullmatch(name))]
    # An empty list of layers with experts would be that of the config's step.
    step = {} if sparse else {"interleave_moe_layer_step": num_layers + 1}
    return {"moe_layers": sparse, **step}


class Eagle(ChainSpeculator):
    """Method `eagle`: reads the target's final hidden states."""

    def _build(self, parts: LoadedParts, spec: DecoderSpec) -> Sequence[LayerKV]:
        source, config = self._checkpoint()
        inner = config.get("transformer_layer_config") or config.get("model") or config
        inner = inner if isinstance(inner, Mapping) else config
        names = WeightMap(rename=RENAME)
        stored = {names.renamed(name) for name in self._stored_shapes(source)}
        family = FAMILIES.get(str(inner.get("model_type")), Family())
        changes = _expert_fields(family, stored, int(inner.get("num_hidden_layers") or 1))
        if "kv_lora_rank" in inner:
            changes = LATENT
        own = self._decoder_spec(inner, **{"architecture": family.architecture, **changes})
        if own.hidden_size != spec.hidden_size:
            raise ConfigError(
                f"--speculative-config.model {source.name!r}: got hidden_size {own.hidden_size}; "
                f"expected the target's {spec.hidden_size}. Use a head of this model."
            )
        self._head = EagleHead(own, family, stored, self._target, parts.context)
        self._load_weights(self._head.weights, source)
        return self._layers(parts)


class EagleHead(nn.Module):
    """The `ChainHead` of EAGLE. Usually the first layer has no input norm."""

    def __init__(
        self,
        spec: DecoderSpec,
        family: Family,
        stored: set[str],
        target: Decoder,
        context: BuildContext,
    ) -> None:
        super().__init__()
        hidden = spec.hidden_size
        unused = () if family.has_norm else ("norm.*",)
        self.weights = weights = WeightMap(rename=RENAME, ignored=(*IGNORED, *unused))
        self._continues_normed = family.continues_normed
        self._logits = target.logits
        self.embedded = target.embedded

        def optional(name: str) -> Norm | None:
            return optional_norm(
                spec.norm if f"{name}.weight" in stored else None, hidden, context, weights, name
            )

        self.token_norm, self.hidden_norm = (optional(name) for name in ("enorm", "hnorm"))
        self.final_norm = optional("norm") if family.has_norm else None
        bias = "fc.bias" in stored
        self.fc = Linear(context, weights, "fc", 2 * hidden, [Slice("out", hidden)], bias=bias)
        names = replace(spec.names, layer="layers.{}")
        spec = replace(spec, names=names)
        self.rotary = rotary_of(spec, context, weights)
        blocks = []
        for index, facts in enumerate(spec.layers):
            if f"layers.{index}.input_layernorm.weight" not in stored:
                facts = replace(facts, attention_in=None)
            rotary = self.rotary if getattr(facts.attention, "rope", None) else None
            block = Block(facts, spec, names.layer.format(index), rotary, context, weights)
            block.attention_plan = index
            blocks.append(block)
        self.layers = nn.ModuleList(blocks)
        self.kv_layers = [
            LayerKV(f"layers.{i}", block.attention.kv_spec)  # type: ignore[union-attr,arg-type]
            for i, block in enumerate(blocks)
        ]

    def bind_kv(self, caches: Sequence[LayerCache]) -> None:
        """Set the cache of each layer."""
        for block, cache in zip(self.layers, caches, strict=True):
            block.attention.cache = cache  # type: ignore[union-attr]

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
        if self.token_norm is not None:
            embedded = self.token_norm(embedded)
        if self.hidden_norm is not None:
            hidden = self.hidden_norm(hidden)
        x = self.fc(torch.cat((embedded, hidden), dim=-1))
        residual = None
        step = ForwardContext(positions, plans)
        for block in self.layers:
            x, residual = block(x, residual, step)
        out, stream = add_residual(self.final_norm, x, residual)
        return out, out if self._continues_normed else stream

    def best(self, out: torch.Tensor, count: int) -> torch.Tensor:
        """Return the top tokens, with the target's LM head."""
        return top_tokens(self._logits(out), count)


def rotary_of(spec: DecoderSpec, context: BuildContext, weights: WeightMap) -> Rotary | None:
    """Return the rotary embedding of the layers. Its table is built after loading."""
    attention = spec.layers[0].attention
    if attention is None or attention.rope is None:
        return None
    rotary = Rotary(attention.rope, spec.max_positions, context)
    weights.after_load(rotary.finish)
    return rotary
