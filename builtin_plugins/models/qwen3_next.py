"""Qwen3-Next and Qwen 3.5: gated delta rule, with gated attention in every fourth layer."""

from dataclasses import replace

from core.api import Entry, hookimpl
from core.model_spec.decoder import DecoderSpec, MtpLayerSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import MlpSpec, MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import GatedDeltaSpec

HERE = "builtin_plugins.models.qwen3_next"
NAMES = WeightNames(
    recurrent="linear_attn",
    attention_gate="",
    shared_gate="mlp.shared_expert.gate_proj",
    shared_up="mlp.shared_expert.up_proj",
    shared_down="mlp.shared_expert.down_proj",
    ignored=("*.rotary_emb.inv_freq", "mtp.*"),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("Qwen3NextForCausalLM", f"{HERE}:qwen3_next", "Qwen3-Next"),
        Entry("Qwen3_5ForCausalLM", f"{HERE}:qwen3_5", "Qwen 3.5, text"),
        Entry("Qwen3_5MoeForCausalLM", f"{HERE}:qwen3_5_moe", "Qwen 3.5 with experts, text"),
    ]


def qwen3_next(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen3-Next config."""
    facts = ModelFacts(hf_config)
    experts = replace(_experts(facts), renormalize=facts.flag("norm_topk_prob", True))
    step = facts.count("decoder_sparse_step", 1)
    dense = facts.indices("mlp_only_layers")
    mlps = [
        facts.mlp() if i in dense or (i + 1) % step else experts for i in range(facts.num_layers())
    ]
    return _decoder(facts, _delta(facts, grouped=True), mlps)


def qwen3_5(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen 3.5 text config."""
    facts = ModelFacts(hf_config)
    return _decoder(facts, _delta(facts), [facts.mlp()] * facts.num_layers())


def qwen3_5_moe(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen 3.5 text config with experts in every layer."""
    facts = ModelFacts(hf_config)
    return _decoder(facts, _delta(facts), [_experts(facts)] * facts.num_layers())


def _delta(facts: ModelFacts, *, grouped: bool = False) -> GatedDeltaSpec:
    return GatedDeltaSpec(
        heads=facts.count("linear_num_value_heads", 32),
        key_heads=facts.count("linear_num_key_heads", 16),
        key_size=facts.count("linear_key_head_dim", 128),
        value_size=facts.count("linear_value_head_dim", 128),
        kernel=facts.count("linear_conv_kernel_dim", 4),
        layout="grouped" if grouped else "joined",
        activation=facts.activation(),
        eps=facts.number("rms_norm_eps", 1e-6),
    )


def _experts(facts: ModelFacts) -> MoeSpec:
    return MoeSpec(
        experts=facts.count("num_experts", facts.get("num_local_experts")),
        top_k=facts.count("num_experts_per_tok"),
        width=facts.count("moe_intermediate_size", 512),
        activation=facts.activation(),
        shared=MlpSpec(
            width=facts.count("shared_expert_intermediate_size", 512), activation=facts.activation()
        ),
        shared_expert_gate=True,
    )


def _decoder(
    facts: ModelFacts, delta: GatedDeltaSpec, mlps: list[MlpSpec | MoeSpec]
) -> DecoderSpec:
    """Return a decoder with attention in the layers of `layer_types` or an interval."""
    norm = facts.norm(offset=1.0)
    bias = facts.flag("attention_bias")
    heads = facts.heads(256)
    rope = facts.rope(heads["head_size"], share=0.25)
    attention = facts.attention(
        **heads, rope=rope, qk_norm=norm, gate=True, qkv_bias=bias, out_bias=bias
    )
    every = facts.count("full_attention_interval", 4)
    kinds = facts.layer_kinds("full_attention", "linear_attention")
    attends = (
        [(i + 1) % every == 0 for i in range(len(mlps))]
        if kinds is None
        else [k[0] == "f" for k in kinds]
    )
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=attention if attend else None,
            recurrent=None if attend else delta,
            mlp=mlp,
        )
        for attend, mlp in zip(attends, mlps, strict=True)
    )
    mtp = MtpLayerSpec(
        layer=pre_norm_layer(norm, attention=attention, mlp=mlps[-1]),
        norm=norm,
        stored="mtp.layers.0",
        tensors=("mtp.*",),
        token_norm="mtp.pre_fc_norm_embedding",
        hidden_norm="mtp.pre_fc_norm_hidden",
        product="mtp.fc",
        final_norm="mtp.norm",
        continues_normed=True,
    )
    return DecoderSpec(**facts.decoder(), layers=layers, norm=norm, mtp=mtp, names=NAMES)
