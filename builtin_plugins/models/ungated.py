"""Llama-like models without a gate in the MLP, usually with LayerNorm and biases."""

from core.api import Entry, hookimpl
from core.model_spec.attention import NormSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.layer import LayerSpec, pre_norm_layer
from core.model_spec.names import WeightNames
from core.model_spec.rope import Llama3Scaling, RopeSpec

HERE = "builtin_plugins.models.ungated"


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("ArceeForCausalLM", f"{HERE}:arcee", "Arcee AFM"),
        Entry("Jais2ForCausalLM", f"{HERE}:jais2", "Jais 2"),
        Entry("NemotronForCausalLM", f"{HERE}:nemotron", "Nemotron 3 and 4, Minitron"),
        Entry("ApertusForCausalLM", f"{HERE}:apertus", "Apertus"),
        Entry("Starcoder2ForCausalLM", f"{HERE}:starcoder2", "StarCoder 2"),
        Entry("PhiForCausalLM", f"{HERE}:phi", "Phi 1 to 2"),
        Entry("PersimmonForCausalLM", f"{HERE}:persimmon", "Persimmon"),
    ]


def _alike(
    facts: ModelFacts, norm: NormSpec, *, bias: bool, mlp_bias: bool, **attention: object
) -> DecoderSpec:
    """Return a model of equal layers with squared ReLU."""
    layer = pre_norm_layer(
        norm,
        attention=facts.attention(qkv_bias=bias, out_bias=bias, **attention),
        mlp=facts.mlp(activation=facts.activation(default="relu2"), gated=False, bias=mlp_bias),
    )
    return DecoderSpec(**facts.decoder(layer), norm=norm)


def arcee(hf_config: object) -> DecoderSpec:
    """Return the facts of an Arcee config."""
    facts = ModelFacts(hf_config)
    return _alike(
        facts,
        facts.norm(eps=1e-5),
        bias=facts.flag("attention_bias"),
        mlp_bias=facts.flag("mlp_bias"),
    )


def jais2(hf_config: object) -> DecoderSpec:
    """Return the facts of a Jais 2 config."""
    facts = ModelFacts(hf_config)
    bias = facts.flag("attention_bias", True)
    mlp_bias = facts.flag("mlp_bias", True)
    return _alike(facts, facts.layer_norm(), bias=bias, mlp_bias=mlp_bias)


def nemotron(hf_config: object) -> DecoderSpec:
    """Return the facts of a Nemotron config: LayerNorm with an offset of 1, RoPE on half of each
    head.
    """
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm("norm_eps", offset=1.0)
    rope = facts.rope(facts.heads()["head_size"], share=0.5)
    return _alike(
        facts, norm, bias=facts.flag("attention_bias"), mlp_bias=facts.flag("mlp_bias"), rope=rope
    )


def apertus(hf_config: object) -> DecoderSpec:
    """Return the facts of an Apertus config: a learned activation, norms on query and key heads."""
    facts = ModelFacts(hf_config)
    norm = facts.norm(eps=1e-5)
    bias = facts.flag("attention_bias")
    size = facts.heads()["head_size"]
    rope = facts.rope(size, theta=12e6)
    if facts.get("rope_parameters") is None and facts.get("rope_scaling") is None:
        rope = RopeSpec(size=size, theta=12e6, scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192))
    layer = pre_norm_layer(
        norm,
        attention=facts.attention(rope=rope, qk_norm=norm, qkv_bias=bias, out_bias=bias),
        mlp=facts.mlp(activation=facts.activation(default="xielu"), gated=False),
    )
    names = WeightNames(attention_in="attention_layernorm", mlp_in="feedforward_layernorm")
    return DecoderSpec(**facts.decoder(layer), norm=norm, names=names)


def starcoder2(hf_config: object) -> DecoderSpec:
    """Return the facts of a StarCoder 2 config."""
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm("norm_epsilon")
    bias = facts.flag("use_bias", True)
    layer = pre_norm_layer(
        norm,
        attention=facts.attention(window=facts.window(), qkv_bias=bias, out_bias=bias),
        mlp=facts.mlp(
            activation=facts.activation(default="gelu_pytorch_tanh"), gated=False, bias=bias
        ),
    )
    names = WeightNames(up="mlp.c_fc", down="mlp.c_proj")
    return DecoderSpec(**facts.decoder(layer, tied=True), norm=norm, names=names)


def phi(hf_config: object) -> DecoderSpec:
    """Return the facts of a Phi config: parallel attention and MLP with one norm, head bias."""
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm()
    rope = facts.rope(facts.heads()["head_size"], share=0.5)
    qk_norm = norm if facts.flag("qk_layernorm") else None
    layer = LayerSpec(
        attention=facts.attention(rope=rope, qk_norm=qk_norm, qkv_bias=True, out_bias=True),
        mlp=facts.mlp(activation=facts.activation(default="gelu_new"), gated=False, bias=True),
        attention_in=norm,
        parallel=True,
    )
    names = WeightNames(
        final_norm="model.final_layernorm",
        o="self_attn.dense",
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
        up="mlp.fc1",
        down="mlp.fc2",
    )
    return DecoderSpec(**facts.decoder(layer), norm=norm, head_bias=True, names=names)


def persimmon(hf_config: object) -> DecoderSpec:
    """Return the facts of a Persimmon config: query, key and value fused by head, layer norms on
    the heads.
    """
    facts = ModelFacts(hf_config)
    norm = facts.layer_norm()
    rope = facts.rope(facts.heads()["head_size"], share=0.5)
    qk_norm = norm if facts.flag("qk_layernorm", True) else None
    layer = pre_norm_layer(
        norm,
        attention=facts.attention(rope=rope, qk_norm=qk_norm, qkv_bias=True, out_bias=True),
        mlp=facts.mlp(activation=facts.activation(default="relu2"), gated=False, bias=True),
    )
    names = WeightNames(
        final_norm="model.final_layernorm",
        qkv="self_attn.query_key_value",
        qkv_grouped=True,
        o="self_attn.dense",
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
    )
    return DecoderSpec(**facts.decoder(layer), norm=norm, names=names)
