"""BART and those that changed little of it: mBART, PLBart, Marian, Pegasus, M2M-100, NLLB,
Blenderbot.
"""

from dataclasses import replace
from typing import Any

from core.api import (
    AttentionSpec,
    CrossSpec,
    DecoderSpec,
    EncoderSpec,
    Entry,
    LayerSpec,
    MlpSpec,
    ModelFacts,
    NormSpec,
    WeightNames,
    hookimpl,
)

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
    """Return the facts of a BART config: norms of sums, learned positions from row 2 on."""
    return family(
        ModelFacts(hf_config), before=False, positions="learned", offset=2, embed_norm=NORM
    )


def mbart(hf_config: object) -> DecoderSpec:
    """Return the facts of an mBART config: norms before each part and at the end."""
    return family(
        ModelFacts(hf_config), before=True, positions="learned", offset=2, embed_norm=NORM
    )


def plbart(hf_config: object) -> DecoderSpec:
    """Return the facts of a PLBart config: BART's, with scaled embeddings."""
    return family(
        ModelFacts(hf_config),
        before=False,
        positions="learned",
        offset=2,
        embed_norm=NORM,
        scaled=True,
    )


def marian(hf_config: object) -> DecoderSpec:
    """Return the facts of a Marian config: sinusoids, and perhaps two vocabularies."""
    facts = ModelFacts(hf_config)
    apart = not facts.flag("share_encoder_decoder_embeddings", True)
    spec = family(facts, before=False, positions="wide", apart=apart)
    return (
        replace(spec, vocab_size=facts.count("decoder_vocab_size", spec.vocab_size))
        if apart
        else spec
    )


def pegasus(hf_config: object) -> DecoderSpec:
    """Return the facts of a Pegasus config: sinusoids, norms before each part."""
    return family(ModelFacts(hf_config), before=True, positions="wide")


def m2m100(hf_config: object) -> DecoderSpec:
    """Return the facts of an M2M-100 config: other sinusoids, which begin behind the row of the
    padding token.
    """
    facts = ModelFacts(hf_config)
    offset = facts.count("pad_token_id", 1, least=0) + 1
    return family(
        facts, before=True, positions="sinusoidal", offset=offset, scaled=True, activation="relu"
    )


def blenderbot(hf_config: object) -> DecoderSpec:
    """Return the facts of a Blenderbot config."""
    return family(ModelFacts(hf_config), before=True, positions="learned")


def family(
    facts: ModelFacts,
    *,
    before: bool,
    positions: str,
    offset: int = 0,
    embed_norm: NormSpec | None = None,
    scaled: bool = False,
    apart: bool = False,
    activation: str = "gelu",
) -> DecoderSpec:
    """Return a model of BART's kind.

    `before`: norms stand before each part, else they are of sums. `positions` are "learned",
    "sinusoidal" or "wide" ones and begin at row `offset`; `scaled` and `activation` are defaults of
    the config class. `apart`: encoder and decoder have embeddings of their own, as they have where
    the head is not tied.
    """
    tied = facts.flag("tie_word_embeddings", True)
    encoder_names = ENCODER
    names = DECODER
    if apart or not tied:
        encoder_names = replace(ENCODER, embed="model.encoder.embed_tokens")
        names = replace(
            DECODER, embed="model.decoder.embed_tokens", ignored=("model.shared.weight",)
        )
    if positions != "learned":
        names = replace(names, ignored=(*names.ignored, "*.embed_positions.*"))
    hidden = facts.count("d_model")
    most = facts.num_positions(default=1024)
    table: dict[str, Any] = {"position_offset": offset, "embed_norm": embed_norm}
    table["embed_scale"] = hidden**0.5 if facts.flag("scale_embedding", scaled) else 1.0
    if positions == "learned":
        table["learned_positions"] = most
    else:
        table["sinusoidal_positions"] = positions == "sinusoidal" or "wide"
    layer = half(facts, "decoder", before=before, activation=activation)
    reading = half(facts, "encoder", before=before, activation=activation)
    encoder = EncoderSpec(
        layers=(reading,) * facts.num_layers("encoder_layers"),
        norm=NORM if before else None,
        vocab_size=facts.count("vocab_size"),
        start_tokens=facts.start_tokens(),
        names=encoder_names,
        **table,
    )
    return DecoderSpec(
        vocab_size=facts.count("vocab_size"),
        hidden_size=hidden,
        max_positions=most,
        layers=(layer,) * facts.num_layers("decoder_layers"),
        norm=NORM if before else None,
        tied_head="unless stored" if tied else False,
        encoder=encoder,
        names=names,
        **table,
    )


def half(facts: ModelFacts, which: str, *, before: bool, activation: str) -> LayerSpec:
    """Return a layer of the encoder, or of the decoder, which attends to what that made."""
    heads = facts.count(f"{which}_attention_heads")
    size = facts.head_size(facts.count("d_model"), heads)
    attention = AttentionSpec(
        heads=heads, kv_heads=heads, head_size=size, qkv_bias=True, out_bias=True
    )
    first, last = (NORM, None) if before else (None, NORM)
    activation = facts.activation("activation_function", activation)
    return LayerSpec(
        attention=replace(attention, causal=which == "decoder"),
        attention_in=first,
        attention_out=last,
        cross=CrossSpec(attention=attention, norm_in=first, norm_out=last)
        if which == "decoder"
        else None,
        mlp=MlpSpec(
            width=facts.count(f"{which}_ffn_dim"), activation=activation, gated=False, bias=True
        ),
        mlp_in=first,
        mlp_out=last,
        norm_sum=not before,
    )
