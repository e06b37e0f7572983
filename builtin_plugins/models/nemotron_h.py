"""Nemotron H: each layer is one of Mamba 2, attention, MLP or experts; MLPs are not gated."""

from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.hybrid_facts import layer_kinds
from core.model_spec.layer import LayerSpec, MlpSpec, MoeSpec
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import Mamba2Spec

LETTERS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
NAMES = WeightNames(
    embed="model.embeddings",
    final_norm="model.norm_f",
    attention_in="norm",
    mlp_in="norm",
    q="mixer.q_proj",
    k="mixer.k_proj",
    v="mixer.v_proj",
    o="mixer.o_proj",
    up="mixer.up_proj",
    down="mixer.down_proj",
    router="mixer.gate",
    correction_bias="mixer.gate.e_score_correction_bias",
    expert="mixer.experts.{}",
    experts_gate_up="mixer.experts.up_proj",
    experts_down="mixer.experts.down_proj",
    shared_up="mixer.shared_experts.up_proj",
    shared_down="mixer.shared_experts.down_proj",
    rename=((r"^backbone\.", "model."),),
    ignored=("mtp.*",),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    home = "builtin_plugins.models.nemotron_h"
    return [Entry("NemotronHForCausalLM", f"{home}:spec", "Nemotron H, Nemotron 3")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Nemotron H config; attention has no RoPE."""
    facts = ModelFacts(hf_config)
    norm = facts.norm("layer_norm_epsilon", 1e-5)
    act = facts.activation("mlp_hidden_act", "relu2")
    bias = facts.flag("mlp_bias")
    heads = {**facts.heads(128), "kv_heads": facts.count("num_key_value_heads", 8)}
    mlp = MlpSpec(
        width=facts.count("intermediate_size", 21504), activation=act, gated=False, bias=bias
    )
    parts: dict[str, dict[str, Any]] = {
        "linear_attention": {"recurrent": _mamba2(facts, norm), "attention_in": norm},
        "full_attention": {"attention": facts.attention(**heads, rope=None), "attention_in": norm},
        "mlp": {"mlp": mlp, "mlp_in": norm},
    }
    letters = facts.get("hybrid_override_pattern")
    default = ["linear_attention", "moe", "full_attention", "mlp"]
    kinds = layer_kinds(
        facts, default if letters is None else [LETTERS.get(x, x) for x in letters], {*parts, "moe"}
    )
    if "moe" in kinds:
        parts["moe"] = {"mlp": _experts(facts, act, bias), "mlp_in": norm}
    layers = tuple(LayerSpec(**parts[kind]) for kind in kinds)
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, names=NAMES)


def _mamba2(facts: ModelFacts, norm: Any) -> Mamba2Spec:
    return Mamba2Spec(
        heads=facts.count("mamba_num_heads", 128),
        head_size=facts.count("mamba_head_dim", 64),
        state_size=facts.count("ssm_state_size", 128),
        groups=facts.count("n_groups", 8),
        kernel=facts.count("conv_kernel", 4),
        activation=facts.activation("mamba_hidden_act"),
        bias=facts.flag("use_bias"),
        conv_bias=facts.flag("use_conv_bias", True),
        norm=norm,
        dt_min=facts.number("time_step_min", 0.001),
    )


def _experts(facts: ModelFacts, activation: str, bias: bool) -> MoeSpec:
    shared = facts.count("moe_shared_expert_intermediate_size", 7688)
    return MoeSpec(
        experts=facts.count("n_routed_experts", 8),
        top_k=facts.count("num_experts_per_tok", 2),
        width=facts.count("moe_intermediate_size", 7688),
        activation=activation,
        gated=False,
        score="sigmoid",
        renormalize=facts.flag("norm_topk_prob", True),
        scale=facts.number("routed_scaling_factor", 1.0),
        correction_bias=True,
        groups=facts.count("n_group", 1),
        topk_groups=facts.count("topk_group", 1),
        router_fp32=True,
        latent=facts.count("moe_latent_size", 0, least=0),
        latent_bias=bias,
        shared=MlpSpec(width=shared, activation=activation, gated=False, bias=bias),
    )
