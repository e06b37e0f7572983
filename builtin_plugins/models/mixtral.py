"""Mixtral: Mistral whose MLPs are mixtures of experts."""

from builtin_plugins.models.mixtral_names import MIXTRAL_NAMES
from core.api import DecoderSpec, Entry, LayerSpec, ModelFacts, MoeSpec, NormSpec, hookimpl


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [
        Entry("MixtralForCausalLM", "builtin_plugins.models.mixtral:spec", "Mixtral 8x7B and 8x22B")
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Mixtral config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec(eps=facts.number("rms_norm_eps", 1e-5))
    rope = facts.rope(facts.heads()["head_size"], theta=1e6)
    experts = MoeSpec(
        experts=facts.count("num_local_experts", 8),
        top_k=facts.count("num_experts_per_tok", 2),
        width=facts.count("intermediate_size"),
        activation=facts.activation(),
    )
    attention = facts.attention(rope=rope, window=facts.window())
    layer = LayerSpec(attention=attention, mlp=experts, attention_in=norm, mlp_in=norm)
    layers = (layer,) * facts.num_layers()
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=MIXTRAL_NAMES)
