"""T5 and its variants: Flan-T5, mT5, UMT5, ByT5."""

from dataclasses import replace

from core.api import Entry, hookimpl
from core.model_spec.attention import AttentionSpec, RelativeBiasSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.encoder import EncoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import CrossAttentionSpec, MlpSpec, pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.t5"
DECODER = WeightNames(
    embed="shared",
    final_norm="decoder.final_layer_norm",
    layer="decoder.block.{}",
    attention_in="layer.0.layer_norm",
    q="layer.0.SelfAttention.q",
    k="layer.0.SelfAttention.k",
    v="layer.0.SelfAttention.v",
    o="layer.0.SelfAttention.o",
    relative="decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    cross_in="layer.1.layer_norm",
    cross_q="layer.1.EncDecAttention.q",
    cross_k="layer.1.EncDecAttention.k",
    cross_v="layer.1.EncDecAttention.v",
    cross_o="layer.1.EncDecAttention.o",
    mlp_in="layer.2.layer_norm",
    gate="layer.2.DenseReluDense.wi_0",
    up="layer.2.DenseReluDense.wi_1",
    down="layer.2.DenseReluDense.wo",
    ignored=("*coder.embed_tokens.weight", "*.EncDecAttention.relative_attention_bias.*"),
)
ENCODER = replace(
    DECODER,
    final_norm="encoder.final_layer_norm",
    layer="encoder.block.{}",
    relative="encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    mlp_in="layer.1.layer_norm",
    gate="layer.1.DenseReluDense.wi_0",
    up="layer.1.DenseReluDense.wi_1",
    down="layer.1.DenseReluDense.wo",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("T5ForConditionalGeneration", f"{HERE}:t5", "T5, Flan-T5, ByT5"),
        Entry("MT5ForConditionalGeneration", f"{HERE}:mt5", "mT5"),
        Entry("UMT5ForConditionalGeneration", f"{HERE}:umt5", "UMT5, position biases by layer"),
    ]


def t5(hf_config: object) -> DecoderSpec:
    """Return the facts of a T5 config: hidden states are scaled before the tied head."""
    facts = ModelFacts(hf_config)
    scaled = facts.flag("scale_decoder_outputs", facts.flag("tie_word_embeddings", True))
    return _t5(facts, "relu", facts.count("d_model") ** -0.5 if scaled else 1.0)


def mt5(hf_config: object) -> DecoderSpec:
    """Return the facts of an mT5 config."""
    return _t5(ModelFacts(hf_config), "gated-gelu", 1.0)


def umt5(hf_config: object) -> DecoderSpec:
    """Return the facts of a UMT5 config, which scales like T5, tied or not."""
    facts = ModelFacts(hf_config)
    return _t5(facts, "gated-gelu", facts.count("d_model") ** -0.5, shared=False)


def _t5(
    facts: ModelFacts, activation: str, logit_scale: float, *, shared: bool = True
) -> DecoderSpec:
    """Return a model of the T5 family.

    `shared`: all layers use the first layer's relative position bias.
    """
    norm = facts.norm("layer_norm_epsilon")
    heads = facts.count("num_heads")
    size = facts.count("d_kv", 64)
    gated = str(facts.get("feed_forward_proj", activation)).startswith("gated-")
    activation = facts.activation("feed_forward_proj", activation)
    mlp = MlpSpec(width=facts.count("d_ff"), activation=activation, gated=gated)
    num_buckets = facts.count("relative_attention_num_buckets", 32)
    max_distance = facts.count("relative_attention_max_distance", 128)
    plain = AttentionSpec(heads=heads, kv_heads=heads, head_size=size, scale=1.0)
    causal = replace(plain, relative=RelativeBiasSpec(num_buckets, max_distance))
    bidirectional = replace(
        plain,
        relative=RelativeBiasSpec(num_buckets, max_distance, bidirectional=True),
        causal=False,
    )
    layer = pre_norm_layer(norm, attention=bidirectional, mlp=mlp)
    cross = replace(
        layer, attention=causal, cross=CrossAttentionSpec(attention=plain, norm_in=norm)
    )
    count = facts.num_layers("num_layers")
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=facts.count("d_model"),
        max_positions=facts.num_positions("n_positions", 512),
        layers=(cross,) * facts.count("num_decoder_layers", count),
        norm=norm,
        tied_head=True,
        logit_scale=logit_scale,
        encoder=EncoderSpec(
            layers=(layer,) * count,
            norm=norm,
            start_tokens=facts.start_tokens(0),
            names=_named(ENCODER, gated, shared),
        ),
        names=_named(DECODER, gated, shared),
    )


def _named(names: WeightNames, gated: bool, shared: bool) -> WeightNames:
    up = names.up if gated else names.up.replace("wi_1", "wi")
    relative = names.relative if shared else "{}.layer.0.SelfAttention.relative_attention_bias"
    return replace(names, up=up, relative=relative)
