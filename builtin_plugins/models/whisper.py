"""Whisper: features of sound in, text out."""

from dataclasses import replace

from core.api import (
    AttentionSpec,
    CrossSpec,
    DecoderSpec,
    EncoderSpec,
    Entry,
    FramesSpec,
    LayerSpec,
    MlpSpec,
    ModelFacts,
    NormSpec,
    WeightNames,
    hookimpl,
)

DECODER = WeightNames(
    embed="model.decoder.embed_tokens",
    positions="model.decoder.embed_positions",
    final_norm="model.decoder.layer_norm",
    head="proj_out",
    layer="model.decoder.layers.{}",
    attention_in="self_attn_layer_norm",
    o="self_attn.out_proj",
    mlp_in="final_layer_norm",
    up="fc1",
    down="fc2",
)
ENCODER = replace(
    DECODER,
    frames="model.encoder.conv{}",
    positions="model.encoder.embed_positions",
    final_norm="model.encoder.layer_norm",
    layer="model.encoder.layers.{}",
)
NORM = NormSpec("layer", eps=1e-5, bias=True)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [
        Entry("WhisperForConditionalGeneration", "builtin_plugins.models.whisper:spec", "Whisper")
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Whisper config: norms before each part, and no bias of keys."""
    facts = ModelFacts(hf_config)
    heard = facts.num_positions("max_source_positions", 1500)
    said = facts.num_positions("max_target_positions", 448)
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=facts.count("d_model"),
        max_positions=said,
        learned_positions=said,
        layers=(_half(facts, "decoder"),) * facts.num_layers("decoder_layers"),
        norm=NORM,
        tied_head="unless stored",
        encoder=EncoderSpec(
            layers=(_half(facts, "encoder"),) * facts.num_layers("encoder_layers"),
            norm=NORM,
            frames=FramesSpec(facts.count("num_mel_bins", 80)),
            max_len=heard,
            learned_positions=heard,
            start_tokens=facts.start_tokens(50257),
            names=ENCODER,
        ),
        names=DECODER,
    )


def _half(facts: ModelFacts, which: str) -> LayerSpec:
    """Return a layer of the encoder, or of the decoder, which attends to what that made."""
    heads = facts.count(f"{which}_attention_heads")
    size = facts.head_size(facts.count("d_model"), heads)
    shape = AttentionSpec(heads=heads, kv_heads=heads, head_size=size)
    attention = replace(shape, qkv_bias=True, key_bias=False, out_bias=True)
    activation = facts.activation("activation_function", "gelu")
    return LayerSpec(
        attention=replace(attention, causal=which == "decoder"),
        attention_in=NORM,
        cross=CrossSpec(attention=attention, norm_in=NORM) if which == "decoder" else None,
        mlp=MlpSpec(
            width=facts.count(f"{which}_ffn_dim"), activation=activation, gated=False, bias=True
        ),
        mlp_in=NORM,
    )
