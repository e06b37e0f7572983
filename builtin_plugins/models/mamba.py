"""Mamba, Falcon Mamba and Mamba 2: pure state-space models."""

from math import ceil

from builtin_plugins.models.state_spaces import step_limits
from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import Mamba2Spec, MambaSpec

HERE = "builtin_plugins.models.mamba"
NAMES = WeightNames(
    embed="backbone.embeddings",
    layer="backbone.layers.{}",
    attention_in="norm",
    final_norm="backbone.norm_f",
    rename=((r"^backbone\.embedding\.", "backbone.embeddings."),),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("MambaForCausalLM", f"{HERE}:mamba", "Mamba"),
        Entry("FalconMambaForCausalLM", f"{HERE}:falcon_mamba", "Falcon Mamba"),
        Entry("Mamba2ForCausalLM", f"{HERE}:mamba2", "Mamba 2"),
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
            bias=facts.flag("use_bias"),
            conv_bias=facts.flag("use_conv_bias", True),
            norm=inner,
        ),
        attention_in=norm,
    )
    return DecoderSpec(
        **facts.decoder(tied=True), layers=(layer,) * facts.num_layers(), norm=norm, names=NAMES
    )


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
            bias=facts.flag("use_bias"),
            conv_bias=facts.flag("use_conv_bias", True),
            norm=norm,
            **step_limits(facts),
        ),
        attention_in=norm,
    )
    return DecoderSpec(
        **facts.decoder(), layers=(layer,) * facts.num_layers(), norm=norm, names=NAMES
    )
