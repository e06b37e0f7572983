"""DeciLM and Nemotron NAS: Llama with layers of different sizes, some without attention or MLP."""

from types import SimpleNamespace
from typing import Any

from core.api import Entry, ModelError, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MlpSpec

HERE = "builtin_plugins.models.deci"
MULTIPLE = 256
"""Widths derived from `ffn_mult` are rounded up to a multiple of it."""


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("DeciLMForCausalLM", f"{HERE}:spec", "DeciLM and Llama Nemotron (NAS)")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a DeciLM config: `block_configs`, or key-value heads per layer."""
    facts = ModelFacts(hf_config)
    blocks = facts.get("block_configs")
    if blocks is None:
        counts = facts.per_layer("num_key_value_heads_per_layer")
        parts = [_parts(facts, facts.attention(kv_heads=count), facts.mlp()) for count in counts]
    else:
        parts = [_block(facts, ModelFacts(SimpleNamespace(**block))) for block in blocks]
    if len(parts) != facts.num_layers():
        raise ModelError(
            f"block_configs in config.json has {len(parts)} blocks; there are "
            f"{facts.num_layers()} layers."
        )
    stored = tuple(index for index, part in enumerate(parts) if part)
    layers = tuple(LayerSpec(**part) for part in parts if part)
    more = {"stored_layers": stored} if len(stored) < len(parts) else {}
    return DecoderSpec(**facts.decoder(), **more, layers=layers, norm=facts.norm())


def _block(facts: ModelFacts, block: ModelFacts) -> dict[str, Any]:
    """Return the parts of the layer that one of `block_configs` describes."""
    attention = block.part("attention")
    ffn = block.part("ffn")
    for part in (attention, ffn):
        part.refuse("replace_with_linear")
    heads = facts.count("num_attention_heads")
    hidden = facts.count("hidden_size")
    bias = facts.flag("attention_bias")
    width = ffn.count("intermediate_size", 0, least=0)
    if not width and not ffn.flag("no_op"):
        width = int(2 * ffn.number("ffn_mult") * hidden / 3)
        width = -(-width // MULTIPLE) * MULTIPLE
    mixing = None
    if not attention.flag("no_op"):
        count = heads // attention.count("n_heads_in_group")
        mixing = facts.attention(kv_heads=count, qkv_bias=bias, out_bias=bias)
    feeding = None
    if not ffn.flag("no_op"):
        activation = ffn.activation(default=str(facts.get("hidden_act", "silu")))
        feeding = MlpSpec(width=width, activation=activation, bias=facts.flag("mlp_bias"))
    return _parts(facts, mixing, feeding)


def _parts(facts: ModelFacts, attention: Any, mlp: Any) -> dict[str, Any]:
    norm = facts.norm()
    found = {"attention": attention, "attention_in": norm} if attention else {}
    return {**found, "mlp": mlp, "mlp_in": norm} if mlp else found
