"""Llama 1 to 3 and models of the same form: gated MLP, RoPE, pre-norm."""

from collections.abc import Mapping
from typing import Any

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import pre_norm_layer
from core.model_spec.names import WeightNames

HERE = "builtin_plugins.models.llama"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("LlamaForCausalLM", f"{HERE}:spec", "Llama 1 to 3 and its relatives"),
        Entry("Emu3ForCausalLM", f"{HERE}:emu3", "Emu3, text only"),
        Entry("InternLM3ForCausalLM", f"{HERE}:internlm3", "InternLM 3"),
        Entry("SeedOssForCausalLM", f"{HERE}:seed_oss", "Seed-OSS"),
        Entry("SmolLM3ForCausalLM", f"{HERE}:smollm3", "SmolLM 3"),
        Entry("Ernie4_5ForCausalLM", f"{HERE}:ernie4_5", "ERNIE 4.5, dense"),
        Entry("HeliumForCausalLM", f"{HERE}:helium", "Helium"),
        Entry("HunYuanDenseV1ForCausalLM", f"{HERE}:hunyuan_dense", "Hunyuan, dense"),
        Entry("BitNetForCausalLM", f"{HERE}:bitnet", "BitNet, unpacked weights"),
    ]


def spec(hf_config: object) -> DecoderSpec:
    """Return the facts of a Llama config."""
    facts = ModelFacts(hf_config)
    bias = facts.flag("attention_bias")
    return equal_layers(
        facts, facts.norm(), qkv_bias=bias, out_bias=bias, mlp_bias=facts.flag("mlp_bias")
    )


def equal_layers(
    facts: ModelFacts,
    norm: NormSpec,
    *,
    names: WeightNames | None = None,
    tied: bool = False,
    mlp_bias: bool = False,
    mlp: Mapping[str, Any] | None = None,
    **attention: Any,
) -> DecoderSpec:
    """Return a model of equal Llama layers; `mlp` and `attention` change what the config says."""
    layer = pre_norm_layer(
        norm,
        attention=facts.attention(**attention),
        mlp=facts.mlp(**{"bias": mlp_bias, **(mlp or {})}),
    )
    names = names or WeightNames()
    return DecoderSpec(**facts.decoder(layer, tied=tied), norm=norm, names=names)


def emu3(hf_config: object) -> DecoderSpec:
    """Return the facts of an Emu3 text config; tokens of images are like others."""
    facts = ModelFacts(hf_config)
    rope = facts.rope(facts.heads()["head_size"], theta=1e6)
    return equal_layers(facts, facts.norm(eps=1e-5), rope=rope)


def internlm3(hf_config: object) -> DecoderSpec:
    """Return the facts of an InternLM 3 config; its own files and transformers name the biases
    differently.
    """
    facts = ModelFacts(hf_config)
    qkv_bias = facts.flag("qkv_bias", facts.flag("attention_bias"))
    bias = facts.flag("bias", facts.flag("mlp_bias"))
    attention: dict[str, Any] = {"qkv_bias": qkv_bias, "out_bias": bias, **facts.heads(128)}
    return equal_layers(facts, facts.norm(eps=1e-5), mlp_bias=bias, **attention)


def seed_oss(hf_config: object) -> DecoderSpec:
    """Return the facts of a Seed-OSS config."""
    facts = ModelFacts(hf_config)
    bias = facts.flag("attention_bias", True)
    out_bias = facts.flag("attention_out_bias")
    attention: dict[str, Any] = {"qkv_bias": bias, "out_bias": out_bias, **facts.heads(128)}
    return equal_layers(facts, facts.norm(), mlp_bias=facts.flag("mlp_bias"), **attention)


def smollm3(hf_config: object) -> DecoderSpec:
    """Return the facts of a SmolLM 3 config: some layers have no RoPE, and only those may have a
    window.
    """
    facts = ModelFacts(hf_config)
    norm = facts.norm()
    bias = facts.flag("attention_bias")
    mlp = facts.mlp(bias=facts.flag("mlp_bias"))
    rope = facts.rope(facts.heads()["head_size"], theta=2e6)
    uses_rope = facts.switches("no_rope_layers", off_every=facts.count("no_rope_layer_interval", 4))
    size = facts.window() if facts.flag("use_sliding_window") else None
    windows = [None if has_rope else size for has_rope in uses_rope]
    if facts.get("layer_types") is not None:
        windows = facts.windows(size)
    layers = tuple(
        pre_norm_layer(
            norm,
            attention=facts.attention(
                rope=rope if has_rope else None, window=window, qkv_bias=bias, out_bias=bias
            ),
            mlp=mlp,
        )
        for has_rope, window in zip(uses_rope, windows, strict=True)
    )
    return DecoderSpec(**facts.decoder(tied=True), layers=layers, norm=norm)


def ernie4_5(hf_config: object) -> DecoderSpec:
    """Return the facts of an ERNIE 4.5 config."""
    facts = ModelFacts(hf_config)
    rope = facts.rope(facts.heads(128)["head_size"], theta=5e5, interleaved=True)
    bias = facts.flag("use_bias")
    attention: dict[str, Any] = {
        "rope": rope,
        "qkv_bias": bias,
        "out_bias": bias,
        **facts.heads(128),
    }
    return equal_layers(facts, facts.norm(eps=1e-5), tied=True, mlp_bias=bias, **attention)


def helium(hf_config: object) -> DecoderSpec:
    """Return the facts of a Helium config."""
    facts = ModelFacts(hf_config)
    rope = facts.rope(facts.heads(128)["head_size"], theta=1e5, interleaved=True)
    attention: dict[str, Any] = {
        "rope": rope,
        "qkv_bias": facts.flag("attention_bias"),
        **facts.heads(128),
    }
    return equal_layers(facts, facts.norm(eps=1e-8), mlp_bias=facts.flag("mlp_bias"), **attention)


def hunyuan_dense(hf_config: object) -> DecoderSpec:
    """Return the facts of a Hunyuan config: QK norm after RoPE."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("attention_bias")
    names = WeightNames(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm")
    options: dict[str, Any] = {
        "qk_norm": norm,
        "qk_norm_after_rope": True,
        "qkv_bias": bias,
        "out_bias": bias,
    }
    return equal_layers(facts, norm, names=names, **options)


def bitnet(hf_config: object) -> DecoderSpec:
    """Return the facts of a BitNet config: norms before the last product of each part, a squared
    gate.
    """
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("attention_bias")
    rope = facts.rope(facts.heads()["head_size"], theta=5e5)
    layer = pre_norm_layer(
        norm,
        attention=facts.attention(rope=rope, inner_norm=norm, qkv_bias=bias, out_bias=bias),
        mlp=facts.mlp(activation=facts.activation(default="relu2"), inner_norm=norm),
    )
    return DecoderSpec(**facts.decoder(layer), norm=norm)
