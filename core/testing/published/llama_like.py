"""Llama under other names, with fused tensors, factors, or other norms and positions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import torch

from core.testing.published import references
from core.testing.published.layout import HIDDEN, VOCAB, Published, Tensors, fuse, take
from core.testing.published.references import of_class

_QKV: Final = ("q_proj", "k_proj", "v_proj")
_LLAMA3: Final = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_THETA: Final = 50_000.0
_LLAMA3_ROPE: Final = {**_LLAMA3, "rope_type": "llama3", "rope_theta": _THETA}
_PLAIN: Final = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_EQUAL_HEADS: Final = {name: value for name, value in _PLAIN.items() if "key_value" not in name}


def _rope(theta: float = _THETA, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


def _llama(**fields: Any) -> Any:
    return partial(of_class, "LlamaForCausalLM", **fields)


def _fuse_internlm2(tensors: Tensors) -> None:
    fuse(tensors, tuple(f"attention.{part}" for part in _QKV), "attention.wqkv", groups=2)


def _with_visual_experts(tensors: Tensors) -> None:
    _fuse_internlm2(tensors)
    for name in [name for name in tensors if "feed_forward" in name]:
        tensors[name.replace("feed_forward", "feed_forward_ve")] = torch.ones_like(tensors[name])


def _with_towers(tensors: Tensors) -> None:
    """Add the towers of Phi-4 multimodal, and their adapters of the text part."""
    for match, _ in take(dict(tensors), r"(.*)\.base_layer\.weight"):
        for kind in ("vision", "speech"):
            tensors[f"{match[1]}.lora_A.{kind}.weight"] = torch.ones(8, HIDDEN)
            tensors[f"{match[1]}.lora_B.{kind}.weight"] = torch.ones(HIDDEN, 8)
    tensors["model.embed_tokens_extend.image_embed.glb_GN"] = torch.ones(1, 1, 8)


def _fuse_baichuan(tensors: Tensors) -> None:
    fuse(tensors, tuple(f"self_attn.{part}" for part in _QKV), "self_attn.W_pack")


def _fuse_qwen(tensors: Tensors) -> None:
    fuse(tensors, tuple(f"attn.{part}" for part in _QKV), "attn.c_attn")


def _fuse_chatglm(tensors: Tensors) -> None:
    whole = "self_attention.query_key_value"
    fuse(tensors, tuple(f"self_attention.{part}" for part in _QKV), whole)
    tensors["transformer.rotary_pos_emb.inv_freq"] = torch.ones(4)


def _fuse_telechat(tensors: Tensors) -> None:
    parts = ("self_attention.k_proj", "self_attention.v_proj")
    fuse(tensors, parts, "self_attention.key_value", groups=2)


def _as_plamo3(tensors: Tensors) -> None:
    """Fuse, and change the offset 1 of Gemma's norms to the offsets of PLaMo's."""
    fuse(tensors, tuple(f"mixer.{part}" for part in _QKV), "mixer.qkv_proj")
    fuse(tensors, ("mlp.gate_proj", "mlp.up_proj"), "mlp.gate_up_proj")
    for name, offset in (("post_mixer_norm", 1 / 5), ("post_mlp_norm", 5**-1.5)):
        for match, weight in take(tensors, rf".*\.{name}\.weight"):
            tensors[match[0]] = weight + 1 - offset


def _as_plamo2(tensors: Tensors) -> None:
    """Name the norms of B, C and dt, too."""
    _as_plamo3(tensors)
    for match, weight in take(tensors, r"(.*\.mixer\.(?:B|C|dt)_norm)\.weight"):
        tensors[f"{match[1]}_weight"] = weight


_PLAMO: Final = (
    (r"^model\.layers", "model.layers.layers"),
    (r"input_layernorm", "pre_mixer_norm"),
    (r"post_attention_layernorm", "post_mixer_norm"),
    (r"pre_feedforward_layernorm", "pre_mlp_norm"),
    (r"post_feedforward_layernorm", "post_mlp_norm"),
    (r"self_attn", "mixer"),
)


def _interleave(tensors: Tensors) -> None:
    """Order the rows of queries and keys as interleaved RoPE pairs them."""
    for match, weight in take(tensors, r".*\.(q_proj|k_proj)\.weight"):
        heads = weight.reshape(-1, 2, HIDDEN // 4 // 2, HIDDEN)
        tensors[match[0]] = heads.transpose(1, 2).flatten(0, 2)


_INTERNLM2: Final = (
    (r"embed_tokens", "tok_embeddings"),
    (r"^lm_head", "output"),
    (r"input_layernorm", "attention_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"self_attn\.o_proj", "attention.wo"),
    (r"self_attn", "attention"),
    (r"mlp\.gate_proj", "feed_forward.w1"),
    (r"mlp\.up_proj", "feed_forward.w3"),
    (r"mlp\.down_proj", "feed_forward.w2"),
)
_INTERNLM2_CONFIG: Final = {
    **_PLAIN,
    "model_type": "internlm2",
    "attn_implementation": "eager",
    "bias": True,
    "rope_theta": _THETA,
    "rope_scaling": {"type": "dynamic", "factor": 2.0},
}
_GPT: Final = (
    (r"^model\.embed_tokens", "transformer.wte"),
    (r"^model\.layers", "transformer.h"),
    (r"^model\.norm", "transformer.ln_f"),
    (r"input_layernorm", "ln_1"),
    (r"post_attention_layernorm", "ln_2"),
)
_TELECHAT: Final = (
    (r"^model\.embed_tokens", "transformer.word_embeddings"),
    (r"^model\.layers", "transformer.h"),
    (r"^model\.norm", "transformer.ln_f"),
    (r"self_attn\.q_proj", "self_attention.query"),
    (r"self_attn\.o_proj", "self_attention.dense"),
    (r"self_attn", "self_attention"),
)
_TELECHAT_CONFIG: Final = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "ffn_hidden_size": 96,
    "n_layer": 3,
    "n_head": 4,
    "num_key_value_heads": 2,
    "layer_norm_epsilon": 1e-6,
    "seq_length": 512,
    "training_seqlen": 512,
    "base_seqlen": 256,
    "hidden_dropout": 0.0,
    "apply_residual_connection_post_layernorm": False,
    "tie_word_embeddings": False,
}
_TELECHAT_THETA: Final = 10_000.0 * 3 ** (16 / 14)
"""Twice the base length: 2 ** (1 + 1) - 1 is the factor before the exponent."""
_CHATGLM: Final = (
    (r"^model\.embed_tokens", "transformer.embedding.word_embeddings"),
    (r"^model\.layers", "transformer.encoder.layers"),
    (r"^model\.norm", "transformer.encoder.final_layernorm"),
    (r"^lm_head", "transformer.output_layer"),
    (r"self_attn\.o_proj", "self_attention.dense"),
    (r"self_attn", "self_attention"),
    (r"mlp\.gate_up_proj", "mlp.dense_h_to_4h"),
    (r"mlp\.down_proj", "mlp.dense_4h_to_h"),
)
_CHATGLM_CONFIG: Final = {
    "model_type": "chatglm",
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "apply_residual_connection_post_layernorm": False,
    "ffn_hidden_size": 96,
    "hidden_size": HIDDEN,
    "kv_channels": 16,
    "layernorm_epsilon": 1.5625e-7,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 4,
    "num_layers": 3,
    "original_rope": True,
    "padded_vocab_size": VOCAB,
    "post_layer_norm": True,
    "rmsnorm": True,
    "rope_ratio": 5,
    "seq_length": 512,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB,
}
_BLOCKS: Final = (
    {"attention": {"n_heads_in_group": 2, "no_op": False}, "ffn": {"ffn_mult": 1.5}},
    {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"intermediate_size": 96}},
    {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"no_op": True}},
    {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": None, "no_op": True}},
)

_PHI4: Final = {
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
}
_PHI4_ROPE: Final = {"rope_type": "longrope", "partial_rotary_factor": 0.75}

LLAMA_LIKE: Final[Mapping[str, Published]] = {
    "Phi4MMForCausalLM": Published(
        "microsoft/Phi-4-multimodal-instruct",
        partial(
            of_class,
            "Phi3ForCausalLM",
            original_max_position_embeddings=48,
            rope_parameters={**_PHI4, **_PHI4_ROPE, "rope_theta": 10_000.0},
            tie_word_embeddings=True,
            sliding_window=40,
        ),
        {
            **_PLAIN,
            "model_type": "phi4mm",
            "original_max_position_embeddings": 48,
            "partial_rotary_factor": 0.75,
            "rms_norm_eps": 1e-5,
            "rope_scaling": {**_PHI4, "type": "longrope"},
            "rope_theta": 10_000.0,
            "sliding_window": 40,
            "tie_word_embeddings": True,
        },
        ((r"(qkv_proj|o_proj|gate_up_proj|down_proj)\.weight", r"\1.base_layer.weight"),),
        _with_towers,
    ),
    "InternLMForCausalLM": Published(
        "internlm/internlm-7b",
        _llama(attention_bias=True, num_key_value_heads=4),
        {**_EQUAL_HEADS, "model_type": "internlm", "bias": True},
    ),
    "InternLM2ForCausalLM": Published(
        "internlm/internlm2_5-7b-chat",
        _llama(attention_bias=True, **_rope()),
        _INTERNLM2_CONFIG,
        _INTERNLM2,
        _fuse_internlm2,
    ),
    "InternLM2VEForCausalLM": Published(
        "OpenGVLab/Mono-InternVL-2B",
        _llama(**_rope()),
        {**_INTERNLM2_CONFIG, "bias": False},
        _INTERNLM2,
        _with_visual_experts,
    ),
    "BaiChuanForCausalLM": Published(
        "baichuan-inc/Baichuan-7B",
        _llama(num_key_value_heads=4),
        {**_EQUAL_HEADS, "model_type": "baichuan"},
        (),
        _fuse_baichuan,
    ),
    "BaichuanForCausalLM": Published(
        "baichuan-inc/Baichuan-13B-Base",
        references.llama_with_alibi,
        {
            **{k: v for k, v in _EQUAL_HEADS.items() if k != "max_position_embeddings"},
            "model_type": "baichuan",
            "model_max_length": 512,
        },
        (),
        _fuse_baichuan,
    ),
    "ExaoneForCausalLM": Published(
        "LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct",
        _llama(rope_parameters=_LLAMA3_ROPE, rms_norm_eps=1e-5),
        {
            "model_type": "exaone",
            "activation_function": "silu",
            "hidden_size": HIDDEN,
            "intermediate_size": 96,
            "layer_norm_epsilon": 1e-5,
            "max_position_embeddings": 512,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_layers": 3,
            "rope_scaling": {**_LLAMA3, "rope_type": "llama3"},
            "rope_theta": _THETA,
            "tie_word_embeddings": False,
            "vocab_size": VOCAB,
        },
        (
            *_GPT,
            (r"self_attn\.o_proj", "attn.attention.out_proj"),
            (r"self_attn", "attn.attention"),
            (r"mlp\.gate_proj", "mlp.c_fc_0"),
            (r"mlp\.up_proj", "mlp.c_fc_1"),
            (r"mlp\.down_proj", "mlp.c_proj"),
        ),
    ),
    "QWenLMHeadModel": Published(
        "Qwen/Qwen-1_8B",
        partial(references.llama_with_biases, after=False, num_key_value_heads=4),
        {
            "model_type": "qwen",
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * 96,
            "kv_channels": 16,
            "layer_norm_epsilon": 1e-6,
            "max_position_embeddings": 512,
            "no_bias": True,
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
            "rotary_emb_base": 10000,
            "rotary_pct": 1.0,
            "seq_length": 256,
            "tie_word_embeddings": False,
            "use_dynamic_ntk": True,
            "use_logn_attn": True,
            "vocab_size": VOCAB,
        },
        (
            *_GPT,
            (r"self_attn\.o_proj", "attn.c_proj"),
            (r"self_attn", "attn"),
            (r"mlp\.gate_proj", "mlp.w2"),
            (r"mlp\.up_proj", "mlp.w1"),
            (r"mlp\.down_proj", "mlp.c_proj"),
        ),
        _fuse_qwen,
    ),
    "ChatGLMModel": Published(
        "zai-org/glm-4-9b-chat",
        partial(
            of_class,
            "GlmForCausalLM",
            head_dim=16,
            attention_bias=True,
            rms_norm_eps=1.5625e-7,
            **_rope(partial_rotary_factor=0.5),
        ),
        _CHATGLM_CONFIG,
        _CHATGLM,
        _fuse_chatglm,
    ),
    "MiniCPMForCausalLM": Published(
        "openbmb/MiniCPM-2B-sft-bf16",
        partial(
            of_class,
            "GraniteForCausalLM",
            tie_word_embeddings=True,
            attention_multiplier=0.25,
            embedding_multiplier=3.0,
            residual_multiplier=1.4 / 3**0.5,
            logits_scaling=4.0,
        ),
        {
            **{k: v for k, v in _PLAIN.items() if k != "tie_word_embeddings"},
            "model_type": "minicpm",
            "scale_emb": 3,
            "scale_depth": 1.4,
            "dim_model_base": 16,
        },
    ),
    "TeleFLMForCausalLM": Published(
        "CofeAI/Tele-FLM",
        partial(
            of_class,
            "GraniteForCausalLM",
            attention_multiplier=0.25,
            embedding_multiplier=2.0,
            residual_multiplier=1.0,
            logits_scaling=4.0,
        ),
        {
            **_PLAIN,
            "model_type": "TeleFLM",
            "use_mup": True,
            "input_mult": 2.0,
            "output_mult": 2.0,
            "mup_scale_factor": 8.0,
        },
    ),
    "OrionForCausalLM": Published(
        "OrionStarAI/Orion-14B-Chat",
        partial(
            of_class,
            "StableLmForCausalLM",
            layer_norm_eps=1e-6,
            **_rope(10_000.0, partial_rotary_factor=1.0),
        ),
        {**_PLAIN, "model_type": "orion", "attention_bias": False, "rope_theta": 10000.0},
    ),
    "TeleChat2ForCausalLM": Published(
        "Tele-AI/TeleChat2-7B",
        partial(references.llama_with_biases, after=True, **_rope(_TELECHAT_THETA)),
        _TELECHAT_CONFIG,
        _TELECHAT,
        _fuse_telechat,
    ),
    "DeciLMForCausalLM": Published(
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
        partial(references.llama_of_unequal_layers, [2, 0, 0, 1], [256, 96, 0, 0]),
        {
            **_EQUAL_HEADS,
            "num_hidden_layers": 4,
            "model_type": "nemotron-nas",
            "num_key_value_heads": None,
            "intermediate_size": None,
            "block_configs": _BLOCKS,
            "attention_bias": False,
        },
    ),
    "Plamo2ForCausalLM": Published(
        "pfnet/plamo-2-1b",
        references.gemma3_as_plamo2,
        {
            **_PLAIN,
            "model_type": "plamo2",
            "hidden_size_per_head": 16,
            "attention_window_size": 2048,
            "full_attention_idx": None,
            "mamba_d_state": 8,
            "mamba_d_conv": 4,
            "mamba_num_heads": 4,
            "mamba_step": 2,
            "mamba_chunk_size": 16,
            "mamba_enabled": True,
        },
        (*_PLAMO, (r"mixer\.([qk])_norm\.weight", r"mixer.\1_weight")),
        _as_plamo2,
    ),
    "Plamo3ForCausalLM": Published(
        "pfnet/plamo-3-nict-2b-base",
        references.gemma3_as_plamo3,
        {
            **_PLAIN,
            "model_type": "plamo3",
            "head_dim": 16,
            "window_size": 24,
            "sliding_window_pattern": 2,
            "rope_theta": 50_000,
            "rope_local_theta": 500,
        },
        _PLAMO,
        _as_plamo3,
    ),
    "Fairseq2LlamaForCausalLM": Published(
        "mgleize/fairseq2-dummy-Llama-3.2-1B",
        _llama(),
        {**_PLAIN, "model_type": "llama", "head_dim": 16},
        (
            (r"^model\.embed_tokens", "decoder_frontend.embed"),
            (r"^model\.norm", "decoder.layer_norm"),
            (r"^model", "decoder"),
            (r"^lm_head", "final_proj"),
            (r"input_layernorm", "self_attn_layer_norm"),
            (r"post_attention_layernorm", "ffn_layer_norm"),
            (r"self_attn\.o_proj", "self_attn.output_proj"),
            (r"mlp\.gate_proj", "ffn.gate_proj"),
            (r"mlp\.up_proj", "ffn.inner_proj"),
            (r"mlp\.down_proj", "ffn.output_proj"),
        ),
        _interleave,
    ),
}
"""Architecture to its layout."""
