"""PLaMo 3: norms around each sublayer with offsets of their own, and sliding windows."""

from dataclasses import replace
from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames

NAMES = WeightNames(
    layer="model.layers.layers.{}",
    attention_in="pre_mixer_norm",
    attention_out="post_mixer_norm",
    qkv="mixer.qkv_proj",
    o="mixer.o_proj",
    q_norm="mixer.q_norm",
    k_norm="mixer.k_norm",
    mlp_in="pre_mlp_norm",
    mlp_out="post_mlp_norm",
    gate_up="mlp.gate_up_proj",
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("Plamo3ForCausalLM", "builtin_plugins.models.plamo3:spec", "PLaMo 3")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a PLaMo 3 config; layers with a window have another rotary base."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(offset=1.0)
    norms: dict[str, Any] = {"attention_in": norm, "attention_out": replace(norm, offset=1 / 5)}
    norms |= {"mlp_in": norm, "mlp_out": replace(norm, offset=5**-1.5)}
    size = facts.heads()["head_size"]
    full = facts.rope(size, layer_type="full_attention", theta=1e6)
    local = facts.rope(
        size, layer_type="sliding_attention", theta_name="rope_local_theta", scaled=False
    )
    width = facts.count("window_size", facts.get("sliding_window"))
    windows = facts.windows(width, full_every=facts.count("sliding_window_pattern", 8))
    mlp = facts.mlp()
    layers = tuple(
        LayerSpec(
            attention=facts.attention(
                rope=full if window is None else local, window=window, qk_norm=norm
            ),
            mlp=mlp,
            **norms,
        )
        for window in windows
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)
