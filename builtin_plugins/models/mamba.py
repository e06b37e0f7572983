"""Mamba and Mamba 2: layers of nothing but a state space."""

from builtin_plugins.models.state_spaces import step_limits
from core.api import DecoderSpec, Entry, LayerSpec, Mamba2Spec, ModelFacts, WeightNames, hookimpl

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
    return [Entry("Mamba2ForCausalLM", "builtin_plugins.models.mamba:mamba2", "Mamba 2")]


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
    return DecoderSpec(**facts.decoder(), layers=(layer,) * facts.num_layers(), norm=norm, names=NAMES)
