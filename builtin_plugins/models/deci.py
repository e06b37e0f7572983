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
        heads = facts.count("num_attention_heads")
        ffn = {"intermediate_size": facts.count("intermediate_size")}
        blocks = [
            {"attention": {"n_heads_in_group": heads // count}, "ffn": ffn}
            for count in facts.per_layer("num_key_value_heads_per_layer")
        ]
    if len(blocks) != facts.num_layers():
        raise ModelError(
            f"block_configs: got {len(blocks)} blocks in config.json; expected num_hidden_layers "
            f"{facts.num_layers()}. Restore the model's own config.json."
        )
    parts = [_parts(facts, ModelFacts(SimpleNamespace(**block))) for block in blocks]
    stored = tuple(index for index, part in enumerate(parts) if part)
    layers = tuple(LayerSpec(**part) for part in parts if part)
    more: dict[str, Any] = {"stored_layers": stored} if len(stored) < len(parts) else {}
    return DecoderSpec(**facts.decoder(), **more, layers=layers, norm=facts.norm())


def _parts(facts: ModelFacts, block: ModelFacts) -> dict[str, Any]:
    """Return the parts of the layer that one of `block_configs` describes."""
    found: dict[str, Any] = {}
    attention = block.part("attention")
    ffn = block.part("ffn")
    for part in (attention, ffn):
        part.refuse("replace_with_linear")
    if not attention.flag("no_op"):
        bias = facts.flag("attention_bias")
        count = facts.count("num_attention_heads") // attention.count("n_heads_in_group")
        found["attention"] = facts.attention(kv_heads=count, qkv_bias=bias, out_bias=bias)
        found["attention_in"] = facts.norm()
    if not ffn.flag("no_op"):
        width = ffn.count("intermediate_size", 0, least=0)
        if not width:
            width = int(2 * ffn.number("ffn_mult") * facts.count("hidden_size") / 3)
            width = -(-width // MULTIPLE) * MULTIPLE
        activation = ffn.activation(default=str(facts.get("hidden_act", "silu")))
        bias = facts.flag("mlp_bias")
        found["mlp"] = MlpSpec(width=width, activation=activation, bias=bias)
        found["mlp_in"] = facts.norm()
    return found
