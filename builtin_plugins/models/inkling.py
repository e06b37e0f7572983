"""Inkling: biases by distance, short convolutions everywhere; the second reads blocks of layers."""

from typing import Any, Final

from core.api import Entry, ModelError, hookimpl
from core.model_spec.composite import text_part
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, MoeSpec, pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.relative import BlockStreamsSpec, RelativeAttentionSpec

HERE = "builtin_plugins.models.inkling"
SLIDING: Final = "hybrid_sliding"
MTP = ("model.mtp.*",)
NAMES = WeightNames(embed_norm="model.embed_tokens.embed_norm", expert="", ignored=MTP)
PUBLISHED = WeightNames(
    embed="model.llm.embed",
    embed_norm="model.llm.embed_norm",
    final_norm="model.llm.norm",
    head="model.llm.unembed",
    layer="model.llm.layers.{}",
    attention_in="attn_norm",
    mlp_in="mlp_norm",
    correction_bias="mlp.gate.bias",
    expert="",
    experts_gate_up="mlp.experts.w13_weight",
    experts_down="mlp.experts.w2_weight",
    experts_layout="interleaved_rows",
    ignored=MTP,
    rename=(
        (r"\.attn\.w([qkvr])_d[uv]\.", r".self_attn.\1_proj."),
        (r"\.attn\.wo_ud\.", ".self_attn.o_proj."),
        (r"\.attn\.gate_attn\.", ".self_attn.gate_proj."),
        (r"\.attn\.attn_sink_proj\.", ".self_attn.sink_proj."),
        (r"\.attn\.", ".self_attn."),
        (r"sconv\.weight$", "sconv.conv1d.weight"),
        (r"sconv\.static_w$", "sconv.static_weight"),
        (r"sconv\.weight_proj$", "sconv.weight_proj.weight"),
        (r"\.([qkv])_input_norm\.", r".\1_attn_norm."),
    ),
)


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("InklingForCausalLM", f"{HERE}:inkling", "Inkling: biases by distance"),
        Entry("Inkling2ForCausalLM", f"{HERE}:inkling2", "Inkling 2: streams of blocks"),
        Entry("Inkling2ForConditionalGeneration", f"{HERE}:text2", "Inkling 2, its text alone"),
    ]


def inkling(hf_config: object) -> DecoderSpec:
    """Return the facts of an Inkling config."""
    facts = ModelFacts(hf_config)
    if not facts.flag("shared_expert_sink", True):
        raise ModelError(
            "shared_expert_sink in config.json: got False; expected True, with which the router "
            "weighs shared experts. Restore the model's own config.json."
        )
    norm = facts.norm()
    kinds = _kinds(facts)
    mlps = facts.get("mlp_layer_types") or ["sparse"] * len(kinds)
    always = facts.count("n_shared_experts", 2)
    experts = _experts(facts, 6, num_always=always, learned_scale=True)
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=_attention(facts, kind),
            mlp=facts.mlp(learned_scale=True) if mlp == "dense" else experts,
        )
        for kind, mlp in zip(kinds, mlps, strict=True)
    )
    scale = 1 / facts.number("logits_mup_width_multiplier", 24.0)
    return _decoder(facts, layers, NAMES, logit_scale=scale)


def inkling2(hf_config: object) -> DecoderSpec:
    """Return the facts of an Inkling 2 config."""
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    caps = (facts.number("mlp_gate_softcap", 4.0), facts.number("mlp_up_softcap", 25.0))
    clips = (
        facts.number("qk_l2_clip_threshold", 512**0.5),
        facts.number("rel_l2_clip_threshold", 8.0),
    )
    facts.choice("scoring_func", "sigmoid", ("sigmoid",))
    experts = _experts(facts, 8, softcaps=caps)
    length = facts.count("n_layers_per_attn_res_block", 6)
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=_attention(facts, kind, clips=clips, own_kernels=kind != SLIDING),
            mlp=experts,
            streams=_streams(index, length),
        )
        for index, kind in enumerate(_kinds(facts))
    )
    softcap = facts.number("final_logit_softcapping", 30.0)
    return _decoder(facts, layers, PUBLISHED, logit_softcap=softcap)


def text2(hf_config: object) -> DecoderSpec:
    """Return the text part of Inkling 2; its image processor needs torchvision."""
    return text_part(hf_config, inkling2, "model.visual.*")


def _kinds(facts: ModelFacts) -> list[str]:
    """Return the kind of each layer; every sixth sees the whole context."""
    default = ["hybrid" if i % 6 == 5 else SLIDING for i in range(facts.num_layers())]
    return facts.layer_kinds(SLIDING, "hybrid") or default


def _streams(index: int, length: int) -> BlockStreamsSpec:
    """Return the streams of a layer, of blocks of `length` layers."""
    stored = "model.llm.attn_res"
    return BlockStreamsSpec(
        starts_block=index % length == 0,
        attention_query=f"{stored}.attn_queries.{index - 1}" if index else "",
        mlp_query=f"{stored}.mlp_queries.{index}",
    )


def _experts(facts: ModelFacts, top_k: int, **further: Any) -> MoeSpec:
    """Return the experts of a layer."""
    return facts.moe(
        defaults=(facts.count("n_routed_experts"), top_k),
        score="sigmoid",
        router_fp32=True,
        correction_bias=True,
        scale=facts.number("route_scale", facts.number("routed_scaling_factor", 8.0)),
        **further,
    )


def _attention(facts: ModelFacts, kind: str, **further: Any) -> RelativeAttentionSpec:
    """Return the attention of a layer."""
    part = "swa_" if kind == SLIDING else ""
    size = facts.count(f"{part}head_dim", 128)
    window = facts.count("sliding_window_size", 1024 if further else 512) if part else None
    default = 128_000 if further else None
    temperature = None
    if not part and facts.get("log_scaling_n_floor", default) is not None:
        scale = facts.number("log_scaling_alpha", 0.1)
        temperature = (scale, facts.count("log_scaling_n_floor", default))
    return RelativeAttentionSpec(
        heads=facts.count(f"{part}num_attention_heads"),
        kv_heads=facts.count(f"{part}num_key_value_heads"),
        head_size=size,
        bias_rank=facts.count("d_rel", 16),
        extent=window or facts.count("rel_extent", 1024),
        kernel=facts.count("conv_kernel_size", 4),
        scale=size**-0.5 if "clips" in further else 1 / size,
        norm=facts.norm(),
        window=window,
        temperature=temperature,
        **further,
    )


def _decoder(
    facts: ModelFacts, layers: tuple[LayerSpec, ...], names: WeightNames, **further: float
) -> DecoderSpec:
    """Return the decoder; the last rows of its head pad it."""
    vocab_size = facts.count("vocab_size")
    padding = vocab_size - facts.count("unpadded_vocab_size", vocab_size)
    norm = facts.norm()
    whole: dict[str, Any] = {**facts.decoder(), **further, "tied_head": False}
    return DecoderSpec(
        **whole,
        layers=layers,
        norm=norm,
        embed_norm=norm,
        num_padding_tokens=max(padding, 0),
        names=names,
    )
