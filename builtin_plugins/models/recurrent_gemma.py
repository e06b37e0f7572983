"""RecurrentGemma: RG-LRU layers, with windowed attention in every third layer."""

import math

from core.api import Entry, ModelError, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import RgLruSpec

HERE = "builtin_plugins.models.recurrent_gemma"
NAMES = WeightNames(
    recurrent="temporal_block",
    attention_in="temporal_pre_norm",
    q="temporal_block.q_proj",
    k="temporal_block.k_proj",
    v="temporal_block.v_proj",
    o="temporal_block.o_proj",
    mlp_in="channel_pre_norm",
    gate="mlp_block.gate_proj",
    up="mlp_block.up_proj",
    down="mlp_block.down_proj",
    final_norm="model.final_norm",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("RecurrentGemmaForCausalLM", f"{HERE}:spec", "RecurrentGemma")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a RecurrentGemma config; its MLP width counts gate and up together."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(offset=1.0)
    hidden = facts.count("hidden_size")
    heads = facts.count("num_attention_heads")
    size = facts.head_size(hidden, heads)
    activation = facts.activation("hidden_activation", "gelu_pytorch_tanh")
    mlp = facts.mlp(width=facts.count("intermediate_size") // 2, activation=activation, bias=True)
    attention = facts.attention(
        heads=heads,
        kv_heads=facts.count("num_key_value_heads", heads),
        head_size=size,
        rope=facts.rope(size, share=0.5),
        window=facts.count("attention_window_size", facts.get("sliding_window", 2048)),
        qkv_bias=facts.flag("attention_bias"),
        out_bias=True,
    )
    lru = RgLruSpec(
        width=facts.count("lru_width", hidden),
        heads=heads,
        activation=activation,
        kernel=facts.count("conv1d_width", 4),
    )
    attends = pre_norm_layer(norm, attention=attention, mlp=mlp)
    recurs = pre_norm_layer(norm, recurrent=lru, mlp=mlp)
    kinds = facts.get("block_types", ("recurrent", "recurrent", "attention"))
    if not kinds or not set(kinds) <= {"recurrent", "attention"}:
        raise ModelError(
            f"block_types in config.json is {kinds!r:.100}; it must list recurrent and attention."
        )
    mantissa, exponent = math.frexp(
        hidden**0.5
    )  # the factor is a number of bfloat16, whatever the model's dtype
    return DecoderSpec(
        **{**facts.decoder(tied=True), "max_positions": facts.num_positions(default=8192)},
        layers=tuple(
            attends if kinds[i % len(kinds)] == "attention" else recurs
            for i in range(facts.num_layers())
        ),
        norm=norm,
        embed_scale=math.ldexp(round(mantissa * 256), exponent - 8),
        logit_softcap=facts.number("logits_soft_cap", 30.0),
        names=NAMES,
    )
