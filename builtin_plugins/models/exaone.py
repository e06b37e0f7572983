"""EXAONE 3 and 3.5: Llama with GPT-2's names and grouped key-value heads."""

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames

NAMES = WeightNames(
    embed="transformer.wte",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}",
    attention_in="ln_1",
    q="attn.attention.q_proj",
    k="attn.attention.k_proj",
    v="attn.attention.v_proj",
    o="attn.attention.out_proj",
    mlp_in="ln_2",
    gate="mlp.c_fc_0",
    up="mlp.c_fc_1",
    down="mlp.c_proj",
    ignored=("*.rotary.inv_freq",),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("ExaoneForCausalLM", "builtin_plugins.models.exaone:spec", "EXAONE 3 and 3.5")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of an EXAONE 3 config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm("layer_norm_epsilon", 1e-5)
    layer = LayerSpec(
        attention=facts.attention(),
        mlp=facts.mlp(activation=facts.activation("activation_function")),
        attention_in=norm,
        mlp_in=norm,
    )
    layers = (layer,) * facts.num_layers("num_layers")
    return DecoderSpec(**facts.decoder(tied=True), layers=layers, norm=norm, names=NAMES)
