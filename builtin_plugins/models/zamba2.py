"""Zamba2: Mamba 2 in all layers, some of them guided by one of a few transformers that they share."""

from builtin_plugins.models.state_spaces import layer_kinds, mamba2
from core.api import (
    DecoderSpec,
    Entry,
    LayerSpec,
    MlpSpec,
    ModelFacts,
    NormSpec,
    SharedSpec,
    WeightNames,
    hookimpl,
)

USUAL = (
    ["linear_attention"]
    + (["linear_attention"] * 5 + ["hybrid"]) * 7
    + ["linear_attention"] * 4
    + ["hybrid"]
)
USUAL += ["linear_attention"] * 3 + ["hybrid"] + ["linear_attention"] * 2


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architecture."""
    return [Entry("Zamba2ForCausalLM", "builtin_plugins.models.zamba2:spec", "Zamba2")]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Zamba2 config; its attention reads twice the width of the stream."""
    facts = ModelFacts(hf_config)
    norm = facts.norm("rms_norm_eps", eps=1e-5)
    hidden = facts.count("hidden_size")
    heads = facts.count("num_attention_heads", 32)
    state_heads = facts.count("n_mamba_heads", 8)
    size = 2 * hidden // heads
    bias = facts.flag("add_bias_linear")
    attention = facts.attention(
        heads=heads,
        kv_heads=facts.count("num_key_value_heads", heads),
        head_size=size,
        scale=(size / 2) ** -0.5,
        rope=facts.rope(size) if facts.flag("use_mem_rope") else None,
    )
    state = mamba2(
        facts,
        heads=state_heads,
        head_size=facts.count("mamba_expand", 2) * hidden // state_heads,
        state_size=facts.count("mamba_d_state", 64),
        groups=facts.count("mamba_ngroups", 1),
        bias=bias,
        conv_bias=True,
        least_step=facts.number("time_step_min", 0.001),
        most_step=float("inf"),
        norm=NormSpec(eps=1e-5),
    )
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
        shared = SharedSpec(
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
    names = WeightNames(
        recurrent="mamba",
        final_norm="model.final_layernorm",
        rename=((r"\.mamba_decoder\.", "."),),
        ignored=("*.rotary_emb.inv_freq", *copies),
    )
    return DecoderSpec(**facts.decoder(tied=True), layers=tuple(layers), norm=norm, names=names)
