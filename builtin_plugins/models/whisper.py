"""Whisper: audio features to text; and its decoder alone."""

from dataclasses import replace

from builtin_plugins.models.bart import ALONE, NORM, layer_of
from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.encoder import EncoderSpec, FramesSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.whisper"
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


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("WhisperForConditionalGeneration", f"{HERE}:spec", "Whisper"),
        Entry("WhisperForCausalLM", f"{HERE}:alone", "Whisper's decoder"),
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Whisper config: pre-norm, no key bias."""
    facts = ModelFacts(hf_config)
    audio_positions = facts.num_positions("max_source_positions", 1500)
    text_positions = facts.num_positions("max_target_positions", 448)
    encoder_layer = layer_of(facts, "encoder", pre_norm=True, key_bias=False)
    decoder_layer = layer_of(facts, "decoder", pre_norm=True, key_bias=False)
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=facts.count("d_model"),
        max_positions=text_positions,
        learned_positions=text_positions,
        layers=(decoder_layer,) * facts.num_layers("decoder_layers"),
        norm=NORM,
        tied_head=True,
        encoder=EncoderSpec(
            layers=(encoder_layer,) * facts.num_layers("encoder_layers"),
            norm=NORM,
            frames=FramesSpec(facts.count("num_mel_bins", 80)),
            max_len=audio_positions,
            learned_positions=audio_positions,
            start_tokens=facts.start_tokens(50257),
            names=ENCODER,
        ),
        names=DECODER,
    )


def alone(hf_config: object) -> DecoderSpec:
    """Return the facts of a Whisper config, without the encoder and what reads it."""
    whole = spec(hf_config)
    layers = tuple(replace(layer, cross=None) for layer in whole.layers)
    names = replace(DECODER, ignored=ALONE.ignored)
    return replace(whole, encoder=None, layers=layers, names=names)
