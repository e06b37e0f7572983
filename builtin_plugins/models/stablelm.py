"""StableLM: LayerNorm, RoPE on a quarter of each head, optional per-head norms and parallel
sublayers.
"""

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, renamed
from core.model_spec.layer import LayerSpec
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.stablelm"
NAMES = WeightNames(
    q_norm="self_attn.q_layernorm.norms.{}", k_norm="self_attn.k_layernorm.norms.{}"
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("StableLmForCausalLM", f"{HERE}:spec", "StableLM 2 and 3B"),
        Entry("StableLMEpochForCausalLM", f"{HERE}:epoch", "StableLM, as first named"),
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a StableLM config."""
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm()
    parallel = facts.flag("use_parallel_residual")
    layer = LayerSpec(
        attention=facts.attention(
            rope=facts.rope(facts.heads()["head_size"], share=0.25),
            qk_norm=norm if facts.flag("qk_layernorm") else None,
            qk_norm_over="own",
            qkv_bias=facts.flag("use_qkv_bias"),
        ),
        mlp=facts.mlp(),
        attention_in=norm,
        mlp_in=None if parallel else norm,
        parallel=parallel,
    )
    return DecoderSpec(**facts.decoder(layer), norm=norm, names=NAMES)


def epoch(hf_config: object) -> DecoderSpec:
    """Return the facts of StableLM's first configs."""
    return spec(renamed(hf_config, layer_norm_eps="norm_eps", partial_rotary_factor="rope_pct"))
