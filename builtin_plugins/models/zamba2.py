"""Zamba 1 and 2: Mamba in all layers, some with one of a few shared transformer blocks."""

from dataclasses import replace

from core.api import Entry, hookimpl
from core.model_spec.attention import AttentionSpec, NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, renamed
from core.model_spec.hybrid_facts import layer_kinds, mamba, mamba2
from core.model_spec.layer import LayerSpec, MlpSpec, SharedBlockSpec
from core.model_spec.names import WeightNames
from core.model_spec.recurrent import Mamba2Spec

HERE = "builtin_plugins.models.zamba2"
USUAL = (
    ["linear_attention"]
    + (["linear_attention"] * 5 + ["hybrid"]) * 7
    + ["linear_attention"] * 4
    + ["hybrid"]
)
USUAL += ["linear_attention"] * 3 + ["hybrid"] + ["linear_attention"] * 2
NAMES = WeightNames(
    recurrent="mamba",
    final_norm="model.final_layernorm",
    rename=((r"\.mamba_decoder\.", "."),),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("Zamba2ForCausalLM", f"{HERE}:spec", "Zamba2"),
        Entry("ZambaForCausalLM", f"{HERE}:zamba", "Zamba"),
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Zamba2 config; attention reads twice the hidden size."""
    facts = ModelFacts(hf_config)
    norm = facts.norm("rms_norm_eps", eps=1e-5)
    hidden = facts.count("hidden_size")
    bias = facts.flag("add_bias_linear")
    attention = _attention(facts, hidden)
    state = _state(facts, hidden, bias=bias)
    mlp = MlpSpec(
        width=facts.count("intermediate_size", 4 * hidden),
        activation=facts.activation(default="gelu"),
        bias=bias,
    )
    kinds = layer_kinds(facts, USUAL, {"linear_attention", "hybrid"})
    hybrids = [index for index, kind in enumerate(kinds) if kind == "hybrid"]
    stored = [
        f"model.layers.{index}.shared_transformer"
        for index in hybrids[: facts.count("num_mem_blocks", 1)]
    ]
    plain = LayerSpec(recurrent=state, attention_in=norm)
    layers = [plain] * len(kinds)
    for use, index in enumerate(hybrids):
        shared = SharedBlockSpec(
            stored=stored[use % len(stored)],
            use=use,
            norm=norm,
            mlp=mlp,
            rank=facts.count("adapter_rank", 128),
            adapts_attention=facts.flag("use_shared_attention_adapter"),
        )
        layers[index] = LayerSpec(
            attention=attention, recurrent=state, shared=shared, attention_in=norm
        )
    copies = [f"model.layers.{index}.shared_transformer.*" for index in hybrids[len(stored) :]]
    names = replace(NAMES, ignored=("*.rotary_emb.inv_freq", *copies))
    return DecoderSpec(**facts.decoder(tied=True), layers=tuple(layers), norm=norm, names=names)


def zamba(hf_config: object) -> DecoderSpec:
    """Return the facts of a Zamba config: Mamba with heads, one shared block without adapters."""
    facts = ModelFacts(renamed(hf_config, head_dim="attention_head_dim"))
    norm = facts.norm(eps=1e-5)
    hidden = facts.count("hidden_size")
    activation = facts.activation("hidden_mamba_act")
    state = mamba(facts, activation=activation, heads=facts.count("n_mamba_heads", 2))
    mlp = facts.mlp(activation=facts.activation(default="gelu"))
    size = facts.heads(2 * hidden // facts.count("num_attention_heads"))["head_size"]
    attention = facts.attention(rope=None, head_size=size, scale=(size / 2) ** -0.5)
    period = facts.count("attn_layer_period", 6)
    offset = facts.count("attn_layer_offset", 4, least=0)
    usual = ["linear_attention"] * 2 + ["hybrid"]
    usual += [
        "hybrid" if index % period == offset else "linear_attention"
        for index in range(facts.num_layers() - 3)
    ]
    kinds = layer_kinds(facts, usual, {"linear_attention", "hybrid"})
    hybrids = [index for index, kind in enumerate(kinds) if kind == "hybrid"]
    shared = [f"model.layers.{index}.shared_transf" for index in hybrids]
    plain = LayerSpec(recurrent=state, attention_in=norm)
    layers = [plain] * len(kinds)
    for use, index in enumerate(hybrids):
        block = SharedBlockSpec(
            stored=shared[0], use=use, norm=norm, mlp=mlp, rank=0, gate_up=False
        )
        layers[index] = LayerSpec(
            attention=attention, recurrent=state, shared=block, attention_in=norm
        )
    names = replace(NAMES, ignored=tuple(f"{copy}.*" for copy in shared[1:]))
    return DecoderSpec(**facts.decoder(tied=True), layers=tuple(layers), norm=norm, names=names)


def _attention(facts: ModelFacts, hidden: int) -> AttentionSpec:
    """Return the attention of the shared blocks."""
    heads = facts.count("num_attention_heads", 32)
    size = 2 * hidden // heads
    return facts.attention(
        heads=heads,
        kv_heads=facts.count("num_key_value_heads", heads),
        head_size=size,
        scale=(size / 2) ** -0.5,
        rope=facts.rope(size) if facts.flag("use_mem_rope") else None,
    )


def _state(facts: ModelFacts, hidden: int, *, bias: bool) -> Mamba2Spec:
    """Return the Mamba 2 mixer of each layer."""
    heads = facts.count("n_mamba_heads", 8)
    return mamba2(
        facts,
        heads=heads,
        head_size=facts.count("mamba_expand", 2) * hidden // heads,
        state_size=facts.count("mamba_d_state", 64),
        groups=facts.count("mamba_ngroups", 1),
        bias=bias,
        conv_bias=True,
        dt_min=facts.number("time_step_min", 0.001),
        dt_max=float("inf"),
        activation="silu",
        norm=NormSpec(eps=1e-5),
    )
