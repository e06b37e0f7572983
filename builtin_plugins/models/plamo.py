"""PLaMo 2 and 3: norms around each sublayer with offsets of their own."""

from dataclasses import replace
from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, renamed
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import Mamba2Spec

HERE = "builtin_plugins.models.plamo"
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
    rename=(
        (r"mixer\.([qk])_weight$", r"mixer.\1_norm.weight"),
        (r"_norm_weight$", "_norm.weight"),
    ),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("Plamo2ForCausalLM", f"{HERE}:plamo2", "PLaMo 2: Mamba 2 and attention"),
        Entry("Plamo3ForCausalLM", f"{HERE}:plamo3", "PLaMo 3"),
    ]


def _norms(facts: ModelFacts) -> dict[str, Any]:
    """Return the norms of a layer."""
    norm = facts.norm(offset=1.0)
    after = {"attention_out": replace(norm, offset=1 / 5), "mlp_out": replace(norm, offset=5**-1.5)}
    return {"attention_in": norm, "mlp_in": norm, **after}


def plamo2(hf_config: object) -> DecoderSpec:
    """Return the facts of a PLaMo 2 config; every `mamba_step`-th layer has attention."""
    facts = ModelFacts(renamed(hf_config, head_dim="hidden_size_per_head"))
    num_layers = facts.num_layers()
    every = facts.count("mamba_step", 2, least=2)
    last = num_layers - 1 if num_layers <= every // 2 else None
    attention = facts.attention(qk_norm=NormSpec(eps=1e-6), qk_norm_over="own")
    recurrent = Mamba2Spec(
        heads=facts.count("mamba_num_heads", 64),
        head_size=facts.heads()["head_size"],
        state_size=facts.count("mamba_d_state", 64),
        kernel=facts.count("mamba_d_conv", 4),
        conv_bias=False,
        norm=facts.norm(),
        dt_rank=max(64, facts.count("hidden_size") // 16),
    )
    mixers: list[dict[str, Any]] = [
        {"attention": attention}
        if not facts.flag("mamba_enabled", True) or (i % every == every // 2 or i == last)
        else {"recurrent": recurrent}
        for i in range(num_layers)
    ]
    layers = tuple(LayerSpec(**mixer, mlp=facts.mlp(), **_norms(facts)) for mixer in mixers)
    whole = facts.indices("full_attention_idx")
    windowed = any("attention" in mixer and i not in whole for i, mixer in enumerate(mixers))
    return DecoderSpec(
        **facts.decoder(tied=True),
        layers=layers,
        norm=facts.norm(offset=1.0),
        context_limit=facts.count("attention_window_size", 2048) if windowed else 0,
        limited_by="attention_window_size: with more, its implementations differ",
        names=NAMES,
    )


def plamo3(hf_config: object) -> DecoderSpec:
    """Return the facts of a PLaMo 3 config; layers with a window have another rotary base."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(offset=1.0)
    norms = _norms(facts)
    size = facts.heads()["head_size"]
    full = facts.rope(size, layer_type="full_attention", theta=1e6)
    base = "rope_local_theta"
    local = facts.rope(size, layer_type="sliding_attention", theta_name=base, scaled=False)
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
