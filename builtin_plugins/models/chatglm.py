"""ChatGLM 2 and 3, and GLM 4 in the files of its authors: GLM with fused tensors."""

from core.api import Entry, hookimpl
from core.model_spec.attention import AttentionSpec, NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MlpSpec
from core.model_spec.names import WeightNames
from core.model_spec.rope import RopeSpec

HERE = "builtin_plugins.models.chatglm"
NAMES = WeightNames(
    embed="transformer.embedding.word_embeddings",
    final_norm="transformer.encoder.final_layernorm",
    head="transformer.output_layer",
    layer="transformer.encoder.layers.{}",
    qkv="self_attention.query_key_value",
    o="self_attention.dense",
    gate_up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    ignored=("transformer.rotary_pos_emb.inv_freq",),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("ChatGLMModel", f"{HERE}:spec", "ChatGLM 2 and 3, GLM 4 9B"),
        Entry("ChatGLMForConditionalGeneration", f"{HERE}:spec", "ChatGLM, as later named"),
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a ChatGLM config: interleaved RoPE on half of each head."""
    facts = ModelFacts(hf_config)
    for unserved in (
        "position_encoding_2d",  # ChatGLM 1
        "vision_config",
        "pre_seq_len",
        "apply_residual_connection_post_layernorm",
    ):
        facts.refuse(unserved)
    eps = facts.number("layernorm_epsilon", 1e-5)
    norm = NormSpec(eps=eps) if facts.flag("rmsnorm", True) else NormSpec("layer", eps, bias=True)
    hidden = facts.count("hidden_size")
    heads = facts.count("num_attention_heads")
    size = facts.count("kv_channels", hidden // heads)
    is_grouped = facts.flag("multi_query_attention")
    bias = facts.flag("add_bias_linear")
    theta = 10_000.0 * facts.number("rope_ratio", 1.0)
    layer = LayerSpec(
        attention=AttentionSpec(
            heads=heads,
            kv_heads=facts.count("multi_query_group_num") if is_grouped else heads,
            head_size=size,
            rope=RopeSpec(size // 2, theta, interleaved=True),
            qkv_bias=bias or facts.flag("add_qkv_bias"),
            out_bias=bias,
        ),
        mlp=MlpSpec(width=facts.count("ffn_hidden_size"), bias=bias),
        attention_in=norm,
        mlp_in=norm,
    )
    return DecoderSpec(
        vocab_size=facts.count("padded_vocab_size", facts.get("vocab_size")),
        hidden_size=hidden,
        max_positions=facts.num_positions("seq_length"),
        layers=(layer,) * facts.num_layers("num_layers"),
        norm=norm if facts.flag("post_layer_norm", True) else None,
        tied_head=facts.flag("tie_word_embeddings"),
        names=NAMES,
    )
