"""TeleChat 1 and 2: Llama with key and value fused by head, and biases after each sublayer."""

import math

from core.api import Entry, hookimpl
from core.model_spec.attention import AttentionSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MlpSpec
from core.model_spec.names import WeightNames
from core.model_spec.rope import RopeSpec

HERE = "builtin_plugins.models.telechat"
NAMES = WeightNames(
    embed="transformer.word_embeddings",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}",
    q="self_attention.query",
    k="self_attention.key_value",
    v="self_attention.key_value",
    o="self_attention.dense",
    ignored=("*.rotary_emb.inv_freq",),
)
LIMIT = "training_seqlen: with more, RoPE depends on the length of the text"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("TelechatForCausalLM", f"{HERE}:spec", "TeleChat 1"),
        Entry("TeleChatForCausalLM", f"{HERE}:spec", "TeleChat 1, as vLLM calls it"),
        Entry("TeleChat2ForCausalLM", f"{HERE}:spec", "TeleChat 2"),
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a TeleChat config: RoPE with a base for `training_seqlen` positions."""
    facts = ModelFacts(hf_config)
    for unserved in ("embed_layernorm", "logn", "apply_residual_connection_post_layernorm"):
        facts.refuse(unserved)
    hidden = facts.count("hidden_size")
    heads = facts.count("n_head", facts.get("num_attention_heads"))
    size = facts.head_size(hidden, heads)
    trained = facts.num_positions("training_seqlen", facts.num_positions("seq_length", 8192))
    doublings = math.ceil(math.log2(trained / facts.count("base_seqlen", 8192)) + 1)
    alpha = max(2**doublings - 1, 1)
    rope = RopeSpec(size, theta=10_000.0 * alpha ** (size / (size - 2)))
    norm = facts.norm("layer_norm_epsilon", 1e-5)
    layer = LayerSpec(
        attention=AttentionSpec(
            heads=heads,
            kv_heads=facts.count("num_key_value_heads", heads),
            head_size=size,
            rope=rope,
            out_bias=True,
        ),
        mlp=MlpSpec(width=facts.count("ffn_hidden_size"), out_bias=True),
        attention_in=norm,
        mlp_in=norm,
    )
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=hidden,
        max_positions=facts.num_positions("seq_length", trained),
        context_limit=trained,
        limited_by=LIMIT,
        layers=(layer,) * facts.num_layers("n_layer"),
        norm=norm,
        tied_head=facts.flag("tie_word_embeddings"),
        names=NAMES,
    )
