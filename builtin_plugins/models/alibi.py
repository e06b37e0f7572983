"""ALiBi models: BLOOM, MPT, and Falcon (ALiBi or RoPE)."""

from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.attention import AttentionSpec, alibi_slopes
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, renamed, with_fields
from core.model_spec.layer import LayerSpec, MlpSpec, pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.alibi"
BLOOM = WeightNames(
    embed="transformer.word_embeddings",
    embed_norm="transformer.word_embeddings_layernorm",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}",
    qkv="self_attention.query_key_value",
    qkv_grouped=True,
    o="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    rename=((r"^(word_embeddings|word_embeddings_layernorm|h|ln_f)\.", r"transformer.\1."),),
)
MPT = WeightNames(
    embed="transformer.wte",
    final_norm="transformer.norm_f",
    layer="transformer.blocks.{}",
    attention_in="norm_1",
    mlp_in="norm_2",
    qkv="attn.Wqkv",
    o="attn.out_proj",
    up="ffn.up_proj",
    down="ffn.down_proj",
)
MPT_FIELDS: dict[str, Any] = {"hidden": "d_model", "layers": "n_layers", "positions": "max_seq_len"}
"""Names of MPT's and DBRX's sizes."""


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("BloomForCausalLM", f"{HERE}:bloom", "BLOOM and BLOOMZ"),
        Entry("MptForCausalLM", f"{HERE}:mpt", "MPT"),
        Entry("MPTForCausalLM", f"{HERE}:mpt", "MPT, as its own files call it"),
        Entry("FalconForCausalLM", f"{HERE}:falcon", "Falcon 1 and 2"),
        Entry("RWForCausalLM", f"{HERE}:refined_web", "Falcon, as first named"),
    ]


def bloom(hf_config: object) -> DecoderSpec:
    """Return the facts of a BLOOM config: also normalises the embeddings."""
    facts = ModelFacts(renamed(hf_config, hidden_size="n_embed"))
    is_normed = facts.flag("apply_residual_connection_post_layernorm")
    norm = facts.layer_norm("layer_norm_epsilon")
    hidden = facts.count("hidden_size")
    heads = facts.count("n_head", facts.get("num_attention_heads"))
    size = facts.head_size(hidden, heads)
    slopes = alibi_slopes(heads)
    layer = pre_norm_layer(
        norm,
        attention=AttentionSpec(
            heads=heads, kv_heads=heads, head_size=size, alibi=slopes, qkv_bias=True, out_bias=True
        ),
        mlp=MlpSpec(width=4 * hidden, activation="gelu_tanh", gated=False, bias=True),
        normed_residual=((1.0, 1.0), (1.0, 1.0)) if is_normed else None,
    )
    return DecoderSpec(
        **facts.decoder(layer, tied=True, layers="n_layer", positions="seq_length"),
        norm=norm,
        embed_norm=norm,
        names=BLOOM,
    )


def mpt(hf_config: object) -> DecoderSpec:
    """Return the facts of an MPT config."""
    facts = ModelFacts(hf_config)
    own = facts.part("attn_config")
    norm = facts.layer_norm("layer_norm_epsilon", bias=False)
    hidden = facts.count("d_model")
    heads = facts.count("n_heads")
    layer = pre_norm_layer(
        norm,
        attention=AttentionSpec(
            heads=heads,
            kv_heads=heads,
            head_size=facts.head_size(hidden, heads),
            scale=own.number_or_none("softmax_scale"),
            alibi=alibi_slopes(heads, own.number("alibi_bias_max", 8.0)),
            clip_qkv=own.number_or_none("clip_qkv"),
        ),
        mlp=MlpSpec(width=4 * hidden, activation="gelu", gated=False),
    )
    return DecoderSpec(
        **facts.decoder(layer, tied=True, **MPT_FIELDS),
        norm=norm,
        names=MPT,
    )


def falcon(hf_config: object) -> DecoderSpec:
    """Return the facts of a Falcon config: attention and MLP may be parallel, with one norm or
    two.
    """
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm("layer_norm_epsilon")
    bias = facts.flag("bias")
    later = facts.flag("new_decoder_architecture")
    hidden = facts.count("hidden_size")
    heads = facts.count("num_attention_heads")
    size = facts.head_size(hidden, heads)
    shared = facts.flag("multi_query", True) and not later
    parallel = facts.flag("parallel_attn", True) or later
    alibi = facts.flag("alibi")
    two = facts.count("num_ln_in_parallel_attn", 2) == 2 and later
    layer = LayerSpec(
        attention=AttentionSpec(
            heads=heads,
            kv_heads=1 if shared else facts.count("num_kv_heads", heads),
            head_size=size,
            rope=None if alibi else facts.rope(size),
            alibi=tuple(slope * size**-0.5 for slope in alibi_slopes(heads)) if alibi else (),
            qkv_bias=bias,
            out_bias=bias,
        ),
        mlp=MlpSpec(
            width=facts.count("ffn_hidden_size", 4 * hidden),
            activation=facts.activation("activation", "gelu"),
            gated=False,
            bias=bias,
        ),
        attention_in=norm,
        mlp_in=norm if two or not parallel else None,
        parallel=parallel,
    )
    names = WeightNames(
        embed="transformer.word_embeddings",
        final_norm="transformer.ln_f",
        layer="transformer.h.{}",
        attention_in="ln_attn" if two else "input_layernorm",
        mlp_in="ln_mlp" if two else "post_attention_layernorm",
        qkv=BLOOM.qkv,
        qkv_grouped=not shared,
        o=BLOOM.o,
        up=BLOOM.up,
        down=BLOOM.down,
    )
    return DecoderSpec(**facts.decoder(layer, tied=True), norm=norm, names=names)


def refined_web(hf_config: object) -> DecoderSpec:
    """Return the facts of Falcon's first configs; the larger model's type is `RefinedWeb`."""
    fields = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
    config = renamed(hf_config, num_kv_heads="n_head_kv", **fields)
    is_later = ModelFacts(hf_config).get("model_type") == "RefinedWeb"
    return falcon(with_fields(config, new_decoder_architecture=is_later))
