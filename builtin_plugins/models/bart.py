"""BART and its variants, mBART to Blenderbot and NLLB, and their decoders alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from core.api import Entry, ModelError, hookimpl
from core.model_spec.attention import AttentionSpec, NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.encoder import EncoderSpec
from core.model_spec.facts import ModelFacts, with_fields
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
ALONE = replace(
    DECODER,
    embed="model.decoder.embed_tokens",
    final_bias="",
    # The weights of cross attention, which reads an encoder that is not there.
    ignored=("*.encoder_attn.*", "*.encoder_attn_layer_norm.*", "model.decoder.version"),
)
NORM = NormSpec("layer", eps=1e-5, bias=True)
LEARNED: Final[Mapping[str, Any]] = {"positions": "learned", "offset": 2, "embed_norm": NORM}
"""Learned positions from row 2, and a norm of the embeddings."""


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
        Entry("BlenderbotSmallForConditionalGeneration", f"{HERE}:small", "Blenderbot 90M"),
        Entry("BartForCausalLM", f"{HERE}:bart", "BART's decoder"),
        Entry("MvpForCausalLM", f"{HERE}:bart", "MVP's decoder"),
        Entry("MBartForCausalLM", f"{HERE}:mbart", "mBART's decoder"),
        Entry("PLBartForCausalLM", f"{HERE}:plbart", "PLBart's decoder"),
        Entry("MarianForCausalLM", f"{HERE}:marian", "Marian's decoder"),
        Entry("PegasusForCausalLM", f"{HERE}:pegasus", "Pegasus's decoder"),
        Entry("BigBirdPegasusForCausalLM", f"{HERE}:bigbird_pegasus", "BigBird-Pegasus's decoder"),
        Entry("BlenderbotForCausalLM", f"{HERE}:blenderbot", "Blenderbot's decoder"),
        Entry("BlenderbotSmallForCausalLM", f"{HERE}:small", "Blenderbot 90M's decoder"),
        Entry("TrOCRForCausalLM", f"{HERE}:trocr", "TrOCR's decoder"),
    ]


def bart(hf_config: object) -> DecoderSpec:
    """Return the facts of a BART config: post-norm, learned positions from row 2."""
    return family(ModelFacts(hf_config), pre_norm=False, **LEARNED)


def mbart(hf_config: object) -> DecoderSpec:
    """Return the facts of an mBART config: pre-norm and a final norm."""
    return family(ModelFacts(hf_config), pre_norm=True, **LEARNED)


def plbart(hf_config: object) -> DecoderSpec:
    """Return the facts of a PLBart config: BART's, with scaled embeddings."""
    return family(ModelFacts(hf_config), pre_norm=False, scaled=True, **LEARNED)


def marian(hf_config: object) -> DecoderSpec:
    """Return the facts of a Marian config: sinusoids, one or two vocabularies."""
    facts = ModelFacts(hf_config)
    separate = not facts.flag("share_encoder_decoder_embeddings", True)
    spec = family(facts, pre_norm=False, positions="wide", separate=separate)
    size = facts.count("decoder_vocab_size", spec.vocab_size) if separate else spec.vocab_size
    return replace(spec, vocab_size=size)


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


def small(hf_config: object) -> DecoderSpec:
    """Return the facts of a Blenderbot Small config: its decoder normalises the embeddings,
    unscaled, before it adds positions.
    """
    facts = ModelFacts(hf_config)
    spec = family(facts, pre_norm=False, positions="learned", embed_norm=NORM)
    return replace(spec, embed_norm_first=True, embed_scale=1.0)


def bigbird_pegasus(hf_config: object) -> DecoderSpec:
    """Return the facts of a BigBird-Pegasus decoder: optional biases, another final norm."""
    facts = ModelFacts(hf_config)
    bias = facts.flag("use_bias")
    spec = family(facts, pre_norm=True, positions="learned", activation="gelu_new")
    attention: Any = spec.layers[0].attention
    attention = replace(attention, qkv_bias=bias, out_bias=bias)
    layers = (replace(spec.layers[0], attention=attention),) * len(spec.layers)
    names = replace(spec.names, final_norm="model.decoder.layernorm_embedding")
    return replace(spec, layers=layers, names=names)


def trocr(hf_config: object) -> DecoderSpec:
    """Return the facts of a TrOCR decoder with learned positions."""
    facts = ModelFacts(with_fields(hf_config, is_encoder_decoder=False))
    learned = "use_learned_position_embeddings"
    if not facts.flag(learned, True):
        raise ModelError(f"{learned}: got false; expected true. Use another checkpoint.")
    norm = NORM if facts.flag("layernorm_embedding", True) else None
    spec = family(facts, pre_norm=False, **{**LEARNED, "embed_norm": norm})
    return replace(spec, names=replace(spec.names, head="output_projection"))


def family(
    facts: ModelFacts,
    *,
    pre_norm: bool,
    positions: str,
    separate: bool = False,
    activation: str = "gelu",
    **form: Any,
) -> DecoderSpec:
    """Return a model of the BART family; the arguments are those of `decoder`.

    `separate`: encoder and decoder have separate embeddings, as with an untied head. A config that
    says so has a decoder alone.
    """
    alone = decoder(facts, pre_norm=pre_norm, positions=positions, activation=activation, **form)
    if not facts.flag("is_encoder_decoder", True):
        layers = tuple(replace(layer, cross=None) for layer in alone.layers)
        computed = ("*.embed_positions.*",) if alone.sinusoidal_positions else ()
        names = replace(ALONE, ignored=(*ALONE.ignored, *computed))
        return replace(alone, layers=layers, names=names)
    encoder_names, names = _weight_names(positions, separate=separate or not alone.tied_head)
    table = ("position_offset", "embed_norm", "embed_scale", "learned_positions")
    encoder_layer = layer_of(facts, "encoder", pre_norm=pre_norm, activation=activation)
    encoder = EncoderSpec(
        layers=(encoder_layer,) * facts.num_layers("encoder_layers"),
        norm=alone.norm,
        vocab_size=facts.count("vocab_size"),
        start_tokens=facts.start_tokens(),
        names=encoder_names,
        sinusoidal_positions=alone.sinusoidal_positions,
        **{name: getattr(alone, name) for name in table},
    )
    return replace(alone, encoder=encoder, names=names)


def decoder(
    facts: ModelFacts,
    *,
    pre_norm: bool,
    positions: str,
    offset: int = 0,
    embed_norm: NormSpec | None = None,
    scaled: bool = False,
    activation: str = "gelu",
) -> DecoderSpec:
    """Return the decoder of a model of the BART family, with cross attention.

    `pre_norm`: norms before attention and MLP; otherwise after them. `positions`: "learned",
    "sinusoidal" or "wide", starting at row `offset`. `scaled` and `activation` are defaults of the
    config class.
    """
    hidden = facts.count("d_model")
    max_positions = facts.num_positions(default=1024)
    is_learned = positions == "learned"
    sinusoids: bool | Literal["wide"] = "wide" if positions == "wide" else not is_learned
    layer = layer_of(facts, "decoder", pre_norm=pre_norm, activation=activation)
    return DecoderSpec(
        **facts.decoder(layer, tied=True, length=1024, hidden="d_model", layers="decoder_layers"),
        norm=NORM if pre_norm else None,
        embed_norm=embed_norm,
        embed_scale=hidden**0.5 if facts.flag("scale_embedding", scaled) else 1.0,
        learned_positions=max_positions if is_learned else 0,
        position_offset=offset,
        sinusoidal_positions=sinusoids,
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
        attention_in=norm_in,
        mlp_in=norm_in,
        attention=replace(attention, causal=which == "decoder"),
        attention_out=norm_out,
        cross=cross if which == "decoder" else None,
        mlp=MlpSpec(
            width=facts.count(f"{which}_ffn_dim"), activation=activation, gated=False, bias=True
        ),
        mlp_out=norm_out,
        post_norm=not pre_norm,
    )
