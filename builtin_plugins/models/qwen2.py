"""Qwen2 and Qwen2.5: Llama's shape with biases on query, key and value, and windows in the later layers if asked."""

from core.api import DecoderSpec, Entry, LayerSpec, ModelFacts, NormSpec, hookimpl


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("Qwen2ForCausalLM", "builtin_plugins.models.qwen2:spec", "Qwen2 and Qwen2.5")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen2 config."""
    facts = ModelFacts(hf_config)
    norm = NormSpec(eps=facts.number("rms_norm_eps", 1e-6))
    size = facts.window(4096) if facts.flag("use_sliding_window") else None
    layers = tuple(
        LayerSpec(
            attention=facts.attention(qkv_bias=True, window=window),
            mlp=facts.mlp(),
            attention_in=norm,
            mlp_in=norm,
        )
        for window in facts.windows(size, full_below=facts.count("max_window_layers", 28, least=0))
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm)
