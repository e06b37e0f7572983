"""EXAONE 4: norms after each sublayer and on heads; full-attention layers have no RoPE if others
have windows.
"""

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames

NAMES = WeightNames(attention_out="post_attention_layernorm", mlp_out="post_feedforward_layernorm")


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("Exaone4ForCausalLM", "builtin_plugins.models.exaone4:spec", "EXAONE 4")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of an EXAONE 4 config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    size = facts.window(4096)
    rope = facts.rope(facts.heads()["head_size"])
    pattern = facts.get(
        "sliding_window_pattern", 4
    )  # a number, or a letter for each layer of the pattern
    every = (
        len(pattern)
        if isinstance(pattern, str)
        else facts.count("sliding_window_pattern", 4, least=0)
    )
    layers = tuple(
        LayerSpec(
            attention=facts.attention(
                rope=rope if size is None or window is not None else None,
                window=window,
                qk_norm=norm,
            ),
            mlp=facts.mlp(),
            attention_out=norm,
            mlp_out=norm,
        )
        for window in facts.windows(size, full_every=every)
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)
