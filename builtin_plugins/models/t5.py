"""T5 and its kin: Flan-T5, mT5, UMT5, ByT5."""

from dataclasses import replace

from core.api import (
    AttentionSpec,
    CrossSpec,
    DecoderSpec,
    EncoderSpec,
    Entry,
    LayerSpec,
    MlpSpec,
    ModelFacts,
    RelativeSpec,
    WeightNames,
    hookimpl,
)

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
        Entry(
            "UMT5ForConditionalGeneration",
            f"{HERE}:umt5",
            "UMT5, with distances of its own in every layer",
        ),
    ]


def t5(hf_config: object) -> DecoderSpec:
    """Return the facts of a T5 config: what it gives is scaled down before the head it shares with
    the embedding.
    """
    facts = ModelFacts(hf_config)
    scaled = facts.flag("scale_decoder_outputs", facts.flag("tie_word_embeddings", True))
    return _t5(facts, "relu", facts.count("d_model") ** -0.5 if scaled else 1.0)


def mt5(hf_config: object) -> DecoderSpec:
    """Return the facts of an mT5 config."""
    return _t5(ModelFacts(hf_config), "gated-gelu", 1.0)


def umt5(hf_config: object) -> DecoderSpec:
    """Return the facts of a UMT5 config, which scales like T5 whatever it says of tying."""
    facts = ModelFacts(hf_config)
    return _t5(facts, "gated-gelu", facts.count("d_model") ** -0.5, shared=False)


def _t5(
    facts: ModelFacts, activation: str, logit_scale: float, *, shared: bool = True
) -> DecoderSpec:
    """Return a model of T5's kind.

    `shared`: the first layer's numbers by distance are those of all layers.
    """
    norm = facts.norm("layer_norm_epsilon")
    heads = facts.count("num_heads")
    size = facts.count("d_kv", 64)
    gated = str(facts.get("feed_forward_proj", activation)).startswith("gated-")
    activation = facts.activation("feed_forward_proj", activation)
    mlp = MlpSpec(width=facts.count("d_ff"), activation=activation, gated=gated)
    numbers = facts.count("relative_attention_num_buckets", 32)
    most = facts.count("relative_attention_max_distance", 128)
    plain = AttentionSpec(heads=heads, kv_heads=heads, head_size=size, scale=1.0)
    behind = replace(plain, relative=RelativeSpec(numbers, most))
    around = replace(plain, relative=RelativeSpec(numbers, most, both_ways=True), causal=False)
    layer = LayerSpec(attention=around, attention_in=norm, mlp=mlp, mlp_in=norm)
    cross = replace(layer, attention=behind, cross=CrossSpec(attention=plain, norm_in=norm))
    count = facts.num_layers("num_layers")
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=facts.count("d_model"),
        max_positions=facts.num_positions("n_positions", 512),
        layers=(cross,) * facts.count("num_decoder_layers", count),
        norm=norm,
        tied_head="unless stored",
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
