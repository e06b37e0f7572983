"""Qwen3: Llama's shape with a norm on every query and key head."""

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("Qwen3ForCausalLM", "builtin_plugins.models.qwen3:spec", "Qwen3, dense")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen3 config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec(eps=facts.number("rms_norm_eps", 1e-6))
    bias = facts.flag("attention_bias")
    size = facts.window(4096) if facts.flag("use_sliding_window") else None
    layers = tuple(
        LayerSpec(
            attention=facts.attention(
                **facts.heads(128), qkv_bias=bias, out_bias=bias, qk_norm=norm, window=window
            ),
            mlp=facts.mlp(),
            attention_in=norm,
            mlp_in=norm,
        )
        for window in facts.windows(size, full_below=facts.count("max_window_layers", 28, least=0))
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm)
