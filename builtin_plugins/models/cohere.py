"""Command R: parallel attention and MLP with one LayerNorm without bias, interleaved RoPE."""

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.rope import RopeSpec

HERE = "builtin_plugins.models.cohere"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("CohereForCausalLM", f"{HERE}:cohere", "Command R and R+, Aya"),
        Entry("Cohere2ForCausalLM", f"{HERE}:cohere2", "Command R7B and A"),
    ]


def cohere(hf_config: object) -> DecoderSpec:
    """Return the facts of a Command R config."""
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm(bias=False)
    rope = facts.rope(facts.heads()["head_size"], theta=5e5, interleaved=True)
    qk_norm = norm if facts.flag("use_qk_norm") else None
    layer = _layer(facts, norm, rope, qk_norm=qk_norm, qk_norm_over="own")
    return _model(facts, norm, (layer,) * facts.num_layers())


def cohere2(hf_config: object) -> DecoderSpec:
    """Return the facts of a Command R7B config: RoPE in sliding-window layers only."""
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm(bias=False)
    rope = facts.rope(facts.heads()["head_size"], interleaved=True)
    windows = facts.windows(facts.window(4096), full_every=facts.count("sliding_window_pattern", 4))
    layers = [
        _layer(facts, norm, None if window is None else rope, window=window) for window in windows
    ]
    return _model(facts, norm, tuple(layers))


def _layer(
    facts: ModelFacts, norm: NormSpec, rope: RopeSpec | None, **attention: object
) -> LayerSpec:
    bias = facts.flag("attention_bias")
    return LayerSpec(
        attention=facts.attention(rope=rope, qkv_bias=bias, out_bias=bias, **attention),
        mlp=facts.mlp(),
        attention_in=norm,
        parallel=True,
    )


def _model(facts: ModelFacts, norm: NormSpec, layers: tuple[LayerSpec, ...]) -> DecoderSpec:
    scale = facts.number("logit_scale", 0.0625)
    return DecoderSpec(**facts.decoder(tied=True), layers=layers, norm=norm, logit_scale=scale)
