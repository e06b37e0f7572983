"""Llama under other names: of architectures, config fields and tensors; some fused or scaled."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, Literal

from builtin_plugins.models.llama import equal_layers
from core.api import Entry, ModelError, hookimpl
from core.model_spec.attention import NormSpec, alibi_slopes
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts, renamed
from core.model_spec.layer import LayerSpec, MlpSpec, MoeSpec
from core.model_spec.names import WeightNames
from core.model_spec.pooling import DenseSpec, PoolingSpec
from core.model_spec.rope import RopeSpec

HERE = "builtin_plugins.models.llama_names"
LLAMA = "builtin_plugins.models.llama:spec"
FAIRSEQ2 = WeightNames(
    embed="decoder_frontend.embed",
    final_norm="decoder.layer_norm",
    head="final_proj",
    layer="decoder.layers.{}",
    attention_in="self_attn_layer_norm",
    o="self_attn.output_proj",
    mlp_in="ffn_layer_norm",
    gate="ffn.gate_proj",
    up="ffn.inner_proj",
    down="ffn.output_proj",
)
INTERNLM2 = WeightNames(
    embed="model.tok_embeddings",
    head="output",
    attention_in="attention_norm",
    qkv="attention.wqkv",
    qkv_grouped=True,
    o="attention.wo",
    mlp_in="ffn_norm",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
    # The visual experts of Mono-InternVL, which no token of a text reads.
    ignored=("*.rotary_emb.inv_freq", "*.feed_forward_ve.*"),
)
GPT = WeightNames(
    embed="transformer.wte",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}",
    attention_in="ln_1",
    mlp_in="ln_2",
    down="mlp.c_proj",
    ignored=("*.rotary.inv_freq", "*.rotary_emb.inv_freq", "*.attn.masked_bias"),
)
QWEN = replace(GPT, qkv="attn.c_attn", o="attn.c_proj", gate="mlp.w2", up="mlp.w1")
EXAONE = replace(
    GPT,
    q="attn.attention.q_proj",
    k="attn.attention.k_proj",
    v="attn.attention.v_proj",
    o="attn.attention.out_proj",
    gate="mlp.c_fc_0",
    up="mlp.c_fc_1",
)
TELECHAT = WeightNames(
    embed="transformer.word_embeddings",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}",
    q="self_attention.query",
    k="self_attention.key_value",
    v="self_attention.key_value",
    o="self_attention.dense",
)
MINICPM = WeightNames(expert_gate="w1", expert_up="w3", expert_down="w2")
CHATGLM = WeightNames(
    embed="transformer.embedding.word_embeddings",
    final_norm="transformer.encoder.final_layernorm",
    head="transformer.output_layer",
    layer="transformer.encoder.layers.{}",
    qkv="self_attention.query_key_value",
    o="self_attention.dense",
    gate_up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    ignored=("transformer.rotary_pos_emb.inv_freq",),
)
ROTARY_HIDDEN_SIZE: Final = 4096
"""Hidden size of Baichuan's models with RoPE; their config says it in no other way."""
NORMALIZED_VOCAB_SIZE: Final = 125_696
"""Vocabulary of Baichuan 2, which normalises the head's rows."""
MULTIPLE = 256
"""Widths derived from `ffn_mult` are rounded up to a multiple of it."""


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        Entry("LLaMAForCausalLM", LLAMA, "Llama 1, as first named"),
        Entry("AquilaModel", LLAMA, "Aquila"),
        Entry("AquilaForCausalLM", LLAMA, "Aquila 2"),
        Entry("XverseForCausalLM", LLAMA, "XVERSE"),
        Entry("Fairseq2LlamaForCausalLM", f"{HERE}:fairseq2", "Llama in fairseq2's checkpoints"),
        Entry("InternLMForCausalLM", f"{HERE}:biased", "InternLM 1"),
        Entry("PanguEmbeddedForCausalLM", f"{HERE}:biased", "openPangu Embedded"),
        Entry("InternLM2ForCausalLM", f"{HERE}:internlm2", "InternLM 2 and 2.5"),
        Entry("InternLM2VEForCausalLM", f"{HERE}:internlm2", "the text layers of Mono-InternVL"),
        Entry("InternLM2ForRewardModel", f"{HERE}:reward", "InternLM 2 with a score per token"),
        Entry("OrionForCausalLM", f"{HERE}:orion", "Orion"),
        Entry("BaiChuanForCausalLM", f"{HERE}:baichuan_7b", "Baichuan 7B"),
        Entry("BaichuanForCausalLM", f"{HERE}:baichuan", "Baichuan 13B and Baichuan 2"),
        Entry("ExaoneForCausalLM", f"{HERE}:exaone", "EXAONE 3 and 3.5"),
        Entry("QWenLMHeadModel", f"{HERE}:qwen", "Qwen 1"),
        Entry("MiniCPMForCausalLM", f"{HERE}:minicpm", "MiniCPM 1, 2 and 4"),
        Entry("TeleFLMForCausalLM", f"{HERE}:teleflm", "TeleFLM"),
        Entry("TelechatForCausalLM", f"{HERE}:telechat", "TeleChat 1"),
        Entry("TeleChatForCausalLM", f"{HERE}:telechat", "TeleChat 1, as vLLM calls it"),
        Entry("TeleChat2ForCausalLM", f"{HERE}:telechat", "TeleChat 2"),
        Entry("ChatGLMModel", f"{HERE}:chatglm", "ChatGLM 2 and 3, GLM 4 9B"),
        Entry("ChatGLMForConditionalGeneration", f"{HERE}:chatglm", "ChatGLM, as later named"),
        Entry("DeciLMForCausalLM", f"{HERE}:deci", "DeciLM and Llama Nemotron (NAS)"),
    ]


def fairseq2(hf_config: object) -> DecoderSpec:
    """Return the facts of a Llama config; fairseq2 interleaves what RoPE rotates."""
    facts = ModelFacts(hf_config)
    rope = facts.rope(facts.heads()["head_size"], interleaved=True)
    return equal_layers(facts, facts.norm(), names=FAIRSEQ2, rope=rope)


def biased(hf_config: object) -> DecoderSpec:
    """Return the facts of an InternLM 1 or openPangu config: `bias` is that of attention."""
    facts = ModelFacts(hf_config)
    for unserved in ("param_sink_number", "sandwich_norm", "interleaved_sliding_window"):
        facts.refuse(unserved)  # of later openPangu models
    bias = facts.flag("bias", facts.flag("attention_bias"))
    mlp = {"bias": facts.flag("mlp_bias")}
    own = facts.flag("qkv_bias", bias)
    return equal_layers(facts, facts.norm(), out_bias=bias, mlp=mlp, qkv_bias=own)


def internlm2(hf_config: object) -> DecoderSpec:
    """Return the facts of an InternLM 2 config."""
    facts = ModelFacts(hf_config)
    bias = facts.flag("bias", True)
    return equal_layers(facts, facts.norm(), names=INTERNLM2, qkv_bias=bias, out_bias=bias)


def reward(hf_config: object) -> DecoderSpec:
    """Return the facts of InternLM 2's reward model: one number per token, not normalised."""
    head = (DenseSpec(name="v_head", width=1, bias=False),)
    pooling = PoolingSpec(task="classify", per_token=True, head=head, output_activation="none")
    return replace(internlm2(hf_config), pooling=pooling)


def orion(hf_config: object) -> DecoderSpec:
    """Return the facts of an Orion config; `rms_norm_eps` is that of its LayerNorm."""
    facts = ModelFacts(hf_config)
    bias = facts.flag("attention_bias")
    return equal_layers(facts, facts.layer_norm("rms_norm_eps"), qkv_bias=bias, out_bias=bias)


def baichuan_7b(hf_config: object) -> DecoderSpec:
    """Return the facts of a Baichuan 7B config."""
    facts = ModelFacts(hf_config)
    return equal_layers(facts, facts.norm(), names=WeightNames(qkv="self_attn.W_pack"))


def baichuan(hf_config: object) -> DecoderSpec:
    """Return the facts of a config of Baichuan 13B, which has ALiBi, or of Baichuan 2."""
    facts = ModelFacts(hf_config)
    spec = baichuan_7b(hf_config)
    if spec.hidden_size != ROTARY_HIDDEN_SIZE:
        slopes = alibi_slopes(facts.count("num_attention_heads"))
        spec = equal_layers(facts, facts.norm(), names=spec.names, rope=None, alibi=slopes)
    length = facts.num_positions("model_max_length", spec.max_positions)
    rows: Literal["", "rows"] = "rows" if spec.vocab_size == NORMALIZED_VOCAB_SIZE else ""
    return replace(spec, max_positions=facts.num_positions(default=length), head_normalized=rows)


def exaone(hf_config: object) -> DecoderSpec:
    """Return the facts of an EXAONE 3 config."""
    fields = {"num_hidden_layers": "num_layers", "hidden_act": "activation_function"}
    facts = ModelFacts(renamed(hf_config, **fields))
    return equal_layers(facts, facts.norm("layer_norm_epsilon", 1e-5), names=EXAONE, tied=True)


def qwen(hf_config: object) -> DecoderSpec:
    """Return the facts of a Qwen 1 config; `intermediate_size` counts gate and up together."""
    fields = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
    facts = ModelFacts(renamed(hf_config, head_dim="kv_channels", **fields))
    facts.refuse("visual")
    bias = not facts.flag("no_bias", True)
    width = facts.count("intermediate_size") // 2
    mlp: dict[str, Any] = {"width": width, "activation": "silu", "bias": bias}
    norm = facts.norm("layer_norm_epsilon")
    spec = equal_layers(facts, norm, names=QWEN, mlp=mlp, qkv_bias=True, out_bias=bias)
    if not (facts.flag("use_dynamic_ntk", True) or facts.flag("use_logn_attn", True)):
        return spec
    limit = "seq_length: with more, RoPE and scores depend on the length of the text"
    trained = facts.num_positions("seq_length", spec.max_positions)
    return replace(spec, context_limit=trained, limited_by=limit)


def telechat(hf_config: object) -> DecoderSpec:
    """Return the facts of a TeleChat config: RoPE with a base for `training_seqlen` positions."""
    fields = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
    fields |= {"intermediate_size": "ffn_hidden_size", "max_position_embeddings": "seq_length"}
    facts = ModelFacts(renamed(hf_config, **fields))
    for unserved in ("embed_layernorm", "logn", "apply_residual_connection_post_layernorm"):
        facts.refuse(unserved)
    size = facts.heads()["head_size"]
    trained = facts.num_positions("training_seqlen", facts.num_positions(default=8192))
    doublings = math.ceil(math.log2(trained / facts.count("base_seqlen", 8192)) + 1)
    theta = 10_000.0 * max(2**doublings - 1, 1) ** (size / (size - 2))
    norm = facts.norm("layer_norm_epsilon", 1e-5)
    parts: dict[str, Any] = {"mlp": {"out_bias": True}, "rope": RopeSpec(size, theta)}
    spec = equal_layers(facts, norm, names=TELECHAT, out_bias=True, **parts)
    limit = "training_seqlen: with more, RoPE depends on the length of the text"
    return replace(spec, context_limit=trained, limited_by=limit)


def chatglm(hf_config: object) -> DecoderSpec:
    """Return the facts of a ChatGLM config: interleaved RoPE on half of each head."""
    fields = {"num_hidden_layers": "num_layers", "intermediate_size": "ffn_hidden_size"}
    fields |= {"head_dim": "kv_channels", "max_position_embeddings": "seq_length"}
    facts = ModelFacts(renamed(hf_config, vocab_size="padded_vocab_size", **fields))
    # ChatGLM 1, GLM 4V, and a prefix of P-Tuning.
    for unserved in ("position_encoding_2d", "vision_config", "pre_seq_len"):
        facts.refuse(unserved)
    facts.refuse("apply_residual_connection_post_layernorm")
    eps = facts.number("layernorm_epsilon", 1e-5)
    norm = NormSpec(eps=eps) if facts.flag("rmsnorm", True) else NormSpec("layer", eps, bias=True)
    heads = facts.heads()
    if facts.flag("multi_query_attention"):
        heads["kv_heads"] = facts.count("multi_query_group_num")
    bias = facts.flag("add_bias_linear")
    theta = 10_000.0 * facts.number("rope_ratio", 1.0)
    spec = equal_layers(
        facts,
        norm,
        names=CHATGLM,
        mlp={"activation": "silu", "bias": bias},
        **heads,
        rope=RopeSpec(heads["head_size"] // 2, theta, interleaved=True),
        qkv_bias=bias or facts.flag("add_qkv_bias"),
        out_bias=bias,
    )
    return spec if facts.flag("post_layer_norm", True) else replace(spec, norm=None)


def minicpm(hf_config: object) -> DecoderSpec:
    """Return the facts of a MiniCPM config, of a dense model or of one with experts."""
    facts = ModelFacts(hf_config)
    spec = equal_layers(facts, facts.norm(), names=MINICPM, tied=True)
    # Heads of speculation have one layer, and the denominator of the model.
    scale = facts.number("scale_depth", 1.0) / math.sqrt(
        facts.count("mup_denominator", facts.num_layers())
    )
    layer = replace(spec.layers[0], residual_scale=scale)
    if experts := facts.count("num_experts", 0, least=0):
        top_k = facts.count("num_experts_per_tok")
        layer = replace(layer, mlp=MoeSpec(experts=experts, top_k=top_k, width=facts.mlp().width))
    has_sparse = bool(facts.get("sparse_config"))
    limit = facts.part("sparse_config").count("dense_len", 8192) if has_sparse else 0
    return replace(
        spec,
        context_limit=limit,
        limited_by="sparse_config.dense_len: with more, layers choose blocks of keys",
        layers=(layer,) * facts.num_layers(),
        embed_scale=facts.number("scale_emb", 1.0),
        logit_scale=facts.number("dim_model_base", 1.0) / facts.count("hidden_size"),
    )


def teleflm(hf_config: object) -> DecoderSpec:
    """Return the facts of a TeleFLM config."""
    facts = ModelFacts(hf_config)
    spec = equal_layers(facts, facts.norm())
    if not facts.flag("use_mup"):
        return spec
    scale = facts.number("output_mult", 1.0) / facts.number("mup_scale_factor", 1.0)
    return replace(spec, embed_scale=facts.number("input_mult", 1.0), logit_scale=scale)


def deci(hf_config: object) -> DecoderSpec:
    """Return the facts of a DeciLM config: `block_configs`, or key-value heads per layer."""
    facts = ModelFacts(hf_config)
    blocks = facts.get("block_configs")
    if blocks is None:
        heads = facts.count("num_attention_heads")
        ffn = {"intermediate_size": facts.count("intermediate_size")}
        blocks = [
            {"attention": {"n_heads_in_group": heads // count}, "ffn": ffn}
            for count in facts.per_layer("num_key_value_heads_per_layer")
        ]
    if len(blocks) != facts.num_layers():
        raise ModelError(
            f"block_configs: got {len(blocks)} blocks in config.json; expected num_hidden_layers "
            f"{facts.num_layers()}. Restore the model's own config.json."
        )
    parts = [_parts(facts, ModelFacts(SimpleNamespace(**block))) for block in blocks]
    stored = tuple(index for index, part in enumerate(parts) if part)
    layers = tuple(LayerSpec(**part) for part in parts if part)
    more: dict[str, Any] = {"stored_layers": stored} if len(stored) < len(parts) else {}
    return DecoderSpec(**facts.decoder(), **more, layers=layers, norm=facts.norm())


def _parts(facts: ModelFacts, block: ModelFacts) -> dict[str, Any]:
    """Return the parts of the layer that one of `block_configs` describes."""
    found: dict[str, Any] = {}
    attention = block.part("attention")
    ffn = block.part("ffn")
    for part in (attention, ffn):
        part.refuse("replace_with_linear")
    if not attention.flag("no_op"):
        bias = facts.flag("attention_bias")
        count = facts.count("num_attention_heads") // attention.count("n_heads_in_group")
        found["attention"] = facts.attention(kv_heads=count, qkv_bias=bias, out_bias=bias)
        found["attention_in"] = facts.norm()
    if not ffn.flag("no_op"):
        width = ffn.count("intermediate_size", 0, least=0)
        if not width:
            width = int(2 * ffn.number("ffn_mult") * facts.count("hidden_size") / 3)
            width = -(-width // MULTIPLE) * MULTIPLE
        activation = ffn.activation(default=str(facts.get("hidden_act", "silu")))
        bias = facts.flag("mlp_bias")
        found["mlp"] = MlpSpec(width=width, activation=activation, bias=bias)
        found["mlp_in"] = facts.norm()
    return found
