"""Models without attention: Mamba, Mamba 2, RWKV 4 and xLSTM."""

from dataclasses import replace
from math import ceil

from core.api import Entry, ModelError, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, renamed
from core.model_spec.hybrid_facts import step_limits
from core.model_spec.layer import LayerSpec, MlpSpec, pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import (
    Mamba2Spec,
    MambaSpec,
    MLstmSpec,
    RwkvChannelMixSpec,
    RwkvTimeMixSpec,
)

HERE = "builtin_plugins.models.recurrent"
MAMBA = WeightNames(
    embed="backbone.embeddings",
    layer="backbone.layers.{}",
    attention_in="norm",
    final_norm="backbone.norm_f",
    rename=((r"^backbone\.embedding\.", "backbone.embeddings."),),
)
RWKV = WeightNames(
    embed="rwkv.embeddings",
    embed_norm="rwkv.pre_ln",
    final_norm="rwkv.ln_out",
    head="head",
    layer="rwkv.blocks.{}.{}",
    layers_within=2,
    attention_in="norm",
    rename=(
        (r"\.blocks\.0\.pre_ln\.", ".pre_ln."),
        (r"\.ln1\.", ".0.norm."),
        (r"\.attention\.", ".0.mixer."),
        (r"\.ln2\.", ".1.norm."),
        (r"\.feed_forward\.", ".1.mixer."),
    ),
)
XLSTM = WeightNames(
    embed="backbone.embeddings",
    layer="backbone.blocks.{}",
    attention_in="norm_mlstm",
    recurrent="mlstm_layer",
    mlp_in="norm_ffn",
    gate="ffn.proj_up_gate",
    up="ffn.proj_up",
    down="ffn.proj_down",
    final_norm="backbone.out_norm",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("MambaForCausalLM", f"{HERE}:mamba", "Mamba"),
        Entry("FalconMambaForCausalLM", f"{HERE}:falcon_mamba", "Falcon Mamba"),
        Entry("Mamba2ForCausalLM", f"{HERE}:mamba2", "Mamba 2"),
        Entry("RwkvForCausalLM", f"{HERE}:rwkv", "RWKV 4"),
        Entry("xLSTMForCausalLM", f"{HERE}:xlstm", "xLSTM"),
    ]


def mamba(hf_config: object) -> DecoderSpec:
    """Return the facts of a Mamba config."""
    return _channels(ModelFacts(hf_config), None)


def falcon_mamba(hf_config: object) -> DecoderSpec:
    """Return the facts of a Falcon Mamba config: dt, B and C are normalised, without weights."""
    facts = ModelFacts(hf_config)
    return _channels(facts, facts.norm("mixer_rms_eps", weight=False))


def _channels(facts: ModelFacts, inner: NormSpec | None) -> DecoderSpec:
    norm = facts.norm("layer_norm_epsilon", 1e-5)
    hidden = facts.count("hidden_size", 768)
    rank = "time_step_rank"
    layer = LayerSpec(
        recurrent=MambaSpec(
            width=facts.count("intermediate_size", facts.count("expand", 2) * hidden),
            state_size=facts.count("state_size", 16),
            dt_rank=ceil(hidden / 16) if facts.get(rank, "auto") == "auto" else facts.count(rank),
            kernel=facts.count("conv_kernel", 4),
            activation=facts.activation(),
            bias=facts.flag("use_bias"),
            conv_bias=facts.flag("use_conv_bias", True),
            norm=inner,
        ),
        attention_in=norm,
    )
    return DecoderSpec(**facts.decoder(layer, tied=True), norm=norm, names=MAMBA)


def mamba2(hf_config: object) -> DecoderSpec:
    """Return the facts of a Mamba 2 config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm("layer_norm_epsilon", 1e-5)
    layer = LayerSpec(
        recurrent=Mamba2Spec(
            heads=facts.count("num_heads", 128),
            head_size=facts.count("head_dim", 64),
            state_size=facts.count("state_size", 128),
            groups=facts.count("n_groups", 8),
            kernel=facts.count("conv_kernel", 4),
            activation=facts.activation(),
            bias=facts.flag("use_bias"),
            conv_bias=facts.flag("use_conv_bias", True),
            norm=norm,
            **step_limits(facts),
        ),
        attention_in=norm,
    )
    return DecoderSpec(**facts.decoder(layer), norm=norm, names=MAMBA)


def rwkv(hf_config: object) -> DecoderSpec:
    """Return the facts of an RWKV config.

    transformers halves the residual stream after every `rescale_every` blocks; here it keeps its
    size, and the epsilon of the norms grows instead.
    """
    facts = ModelFacts(hf_config)
    facts.refuse("head_size")  # RWKV 5 and 6 have heads
    hidden = facts.count("hidden_size")
    norm = facts.layer_norm("layer_norm_epsilon")
    every = facts.get("rescale_every", 6)
    time = RwkvTimeMixSpec(width=facts.count("attention_hidden_size", hidden))
    channel = RwkvChannelMixSpec(width=facts.count("intermediate_size", 4 * hidden))
    blocks = facts.num_layers()
    halved = [index // every if every > 0 else 0 for index in range(blocks + 1)]
    return DecoderSpec(
        **facts.decoder(positions="context_length", length=1024),
        layers=tuple(
            LayerSpec(recurrent=mixer, attention_in=replace(norm, eps=norm.eps * 4**times))
            for times in halved[:blocks]
            for mixer in (time, channel)
        ),
        embed_norm=norm,
        norm=replace(norm, eps=1e-5 * 4 ** halved[blocks]),
        names=RWKV,
    )


def xlstm(hf_config: object) -> DecoderSpec:
    """Return the facts of an xLSTM config."""
    facts = ModelFacts(renamed(hf_config, hidden_size="embedding_dim"))
    facts.refuse("use_bias")
    if facts.get("weight_mode", "single") != "single":
        raise ModelError("weight_mode: expected 'single', as transformers makes no other weights.")
    hidden = facts.count("hidden_size")
    heads = facts.count("num_heads", 8)
    norm = facts.norm("norm_eps")
    multiple = facts.count("ffn_round_up_to_multiple_of", 64)
    width = int(hidden * facts.number("ffn_proj_factor", 2.667) + multiple - 1) // multiple
    layer = pre_norm_layer(
        norm,
        recurrent=MLstmSpec(
            heads=heads,
            key_size=int(hidden * facts.number("qk_dim_factor", 0.5)) // heads,
            value_size=int(hidden * facts.number("v_dim_factor", 1.0)) // heads,
            gate_softcap=facts.number("gate_soft_cap", 15.0),
            norm_eps=norm.eps,
            eps=facts.number("eps", 1e-6),
        ),
        mlp=MlpSpec(width=width * multiple),
    )
    return DecoderSpec(
        **facts.decoder(layer, length=8192),  # its config has none; it was trained so
        norm=norm,  # transformers 5.23 has it without `add_out_norm`, too
        logit_softcap=facts.number("output_logit_soft_cap", 30.0),
        names=XLSTM,
    )
