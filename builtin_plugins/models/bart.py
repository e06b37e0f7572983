"""BART and its variants: mBART, PLBart, Marian, Pegasus, M2M-100, NLLB, Blenderbot."""

from dataclasses import replace
from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.attention import AttentionSpec, NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.encoder import EncoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import CrossAttentionSpec, LayerSpec, MlpSpec
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.bart"
DECODER = WeightNames(
    embed="model.shared",
    embed_norm="model.decoder.layernorm_embedding",
    positions="model.decoder.embed_positions",
    final_norm="model.decoder.layer_norm",
    layer="model.decoder.layers.{}",
    attention_in="self_attn_layer_norm",
    attention_out="self_attn_layer_norm",
    o="self_attn.out_proj",
    mlp_in="final_layer_norm",
    mlp_out="final_layer_norm",
    up="fc1",
    down="fc2",
    final_bias="final_logits_bias",
    ignored=("model.*coder.embed_tokens.weight", "model.*coder.version"),
)
ENCODER = replace(
    DECODER,
    embed_norm="model.encoder.layernorm_embedding",
    positions="model.encoder.embed_positions",
    final_norm="model.encoder.layer_norm",
    layer="model.encoder.layers.{}",
)
NORM = NormSpec("layer", eps=1e-5, bias=True)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("BartForConditionalGeneration", f"{HERE}:bart", "BART"),
        Entry("MBartForConditionalGeneration", f"{HERE}:mbart", "mBART"),
        Entry("PLBartForConditionalGeneration", f"{HERE}:plbart", "PLBart"),
        Entry("MarianMTModel", f"{HERE}:marian", "Marian, OPUS-MT"),
        Entry("PegasusForConditionalGeneration", f"{HERE}:pegasus", "Pegasus"),
        Entry("M2M100ForConditionalGeneration", f"{HERE}:m2m100", "M2M-100, NLLB"),
        Entry("BlenderbotForConditionalGeneration", f"{HERE}:blenderbot", "Blenderbot"),
    ]


def bart(hf_config: object) -> DecoderSpec:
    """Return the facts of a BART config: post-norm, learned positions from row 2."""
    return family(
        ModelFacts(hf_config), pre_norm=False, positions="learned", offset=2, embed_norm=NORM
    )


def mbart(hf_config: object) -> DecoderSpec:
    """Return the facts of an mBART config: pre-norm and a final norm."""
    return family(
        ModelFacts(hf_config), pre_norm=True, positions="learned", offset=2, embed_norm=NORM
    )


def plbart(hf_config: object) -> DecoderSpec:
    """Return the facts of a PLBart config: BART's, with scaled embeddings."""
    return family(
        ModelFacts(hf_config),
        pre_norm=False,
        positions="learned",
        offset=2,
        embed_norm=NORM,
        scaled=True,
    )


def marian(hf_config: object) -> DecoderSpec:
    """Return the facts of a Marian config: sinusoids, one or two vocabularies."""
    facts = ModelFacts(hf_config)
    separate = not facts.flag("share_encoder_decoder_embeddings", True)
    spec = family(facts, pre_norm=False, positions="wide", separate=separate)
    return (
        replace(spec, vocab_size=facts.count("decoder_vocab_size", spec.vocab_size))
        if separate
        else spec
    )


def pegasus(hf_config: object) -> DecoderSpec:
    """Return the facts of a Pegasus config: sinusoids, pre-norm."""
    return family(ModelFacts(hf_config), pre_norm=True, positions="wide")


def m2m100(hf_config: object) -> DecoderSpec:
    """Return the facts of an M2M-100 config: sinusoids that begin after the padding token's row."""
    facts = ModelFacts(hf_config)
    offset = facts.count("pad_token_id", 1, least=0) + 1
    return family(
        facts, pre_norm=True, positions="sinusoidal", offset=offset, scaled=True, activation="relu"
    )


def blenderbot(hf_config: object) -> DecoderSpec:
    """Return the facts of a Blenderbot config."""
    return family(ModelFacts(hf_config), pre_norm=True, positions="learned")


def family(
    facts: ModelFacts,
    *,
    pre_norm: bool,
    positions: str,
    offset: int = 0,
    embed_norm: NormSpec | None = None,
    scaled: bool = False,
    separate: bool = False,
    activation: str = "gelu",
) -> DecoderSpec:
    """Return a model of the BART family.

    `pre_norm`: norms before attention and MLP; otherwise after them. `positions`: "learned",
    "sinusoidal" or "wide", starting at row `offset`. `scaled` and `activation` are defaults of the
    config class. `separate`: encoder and decoder have separate embeddings, as with an untied head.
    """
    tied = facts.flag("tie_word_embeddings", True)
    encoder_names, names = _weight_names(positions, separate=separate or not tied)
    hidden = facts.count("d_model")
    max_positions = facts.num_positions(default=1024)
    table: dict[str, Any] = {"position_offset": offset, "embed_norm": embed_norm}
    table["embed_scale"] = hidden**0.5 if facts.flag("scale_embedding", scaled) else 1.0
    if positions == "learned":
        table["learned_positions"] = max_positions
    else:
        table["sinusoidal_positions"] = positions == "sinusoidal" or "wide"
    layer = layer_of(facts, "decoder", pre_norm=pre_norm, activation=activation)
    encoder_layer = layer_of(facts, "encoder", pre_norm=pre_norm, activation=activation)
    encoder = EncoderSpec(
        layers=(encoder_layer,) * facts.num_layers("encoder_layers"),
        norm=NORM if pre_norm else None,
        vocab_size=facts.count("vocab_size"),
        start_tokens=facts.start_tokens(),
        names=encoder_names,
        **table,
    )
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=hidden,
        max_positions=max_positions,
        layers=(layer,) * facts.num_layers("decoder_layers"),
        norm=NORM if pre_norm else None,
        tied_head=tied,
        encoder=encoder,
        names=names,
        **table,
    )


def _weight_names(positions: str, *, separate: bool) -> tuple[WeightNames, WeightNames]:
    """Return the weight names of the encoder and the decoder."""
    encoder = ENCODER
    decoder = DECODER
    if separate:
        encoder = replace(ENCODER, embed="model.encoder.embed_tokens")
        decoder = replace(
            DECODER, embed="model.decoder.embed_tokens", ignored=("model.shared.weight",)
        )
    if positions != "learned":
        decoder = replace(decoder, ignored=(*decoder.ignored, "*.embed_positions.*"))
    return encoder, decoder


def layer_of(
    facts: ModelFacts,
    which: str,
    *,
    pre_norm: bool,
    activation: str = "gelu",
    key_bias: bool = True,
) -> LayerSpec:
    """Return a layer of the "encoder" or, with cross attention, of the "decoder"."""
    heads = facts.count(f"{which}_attention_heads")
    size = facts.head_size(facts.count("d_model"), heads)
    attention = AttentionSpec(
        heads=heads,
        kv_heads=heads,
        head_size=size,
        qkv_bias=True,
        key_bias=key_bias,
        out_bias=True,
    )
    norm_in = NORM if pre_norm else None
    norm_out = None if pre_norm else NORM
    cross = CrossAttentionSpec(attention=attention, norm_in=norm_in, norm_out=norm_out)
    activation = facts.activation("activation_function", activation)
    return LayerSpec(
        attention=replace(attention, causal=which == "decoder"),
        attention_in=norm_in,
        attention_out=norm_out,
        cross=cross if which == "decoder" else None,
        mlp=MlpSpec(
            width=facts.count(f"{which}_ffn_dim"), activation=activation, gated=False, bias=True
        ),
        mlp_in=norm_in,
        mlp_out=norm_out,
        post_norm=not pre_norm,
    )
