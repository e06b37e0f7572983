"""Checkpoint names of GGUF tensors. Data only.

Two parts of a layer with one name are fused in the checkpoint. `{}` is the number of an expert. Of
two names separated by `|`, the second is for models with two norms before parallel branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

PartNames = Mapping[str, str]

MODEL_PARTS: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_ATTENTION: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.kv_b_proj",
    "attn_v_b": "self_attn.kv_b_proj",
    "attn_gate": "self_attn.gate_proj",
    "attn_sinks": "self_attn.sinks",
}
_THREE: Final = ("gate", "up", "down")
LAYER_PARTS: Final = {
    **_ATTENTION,
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in _THREE},
    "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{part}_exps": f"mlp.experts.{{}}.{part}_proj" for part in _THREE},
    **{f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in _THREE},
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
}


def _stacked(prefix: str, *, up: str = "gate_up_proj", down: str = "down_proj") -> dict[str, str]:
    """Return the names if a checkpoint stacks all experts' weights in two tensors."""
    names = {"ffn_gate_exps": up, "ffn_up_exps": up, "ffn_down_exps": down}
    return {part: f"{prefix}.{name}" for part, name in names.items()}


def _lettered(prefix: str) -> dict[str, str]:
    """Return the names of experts with weights named w1, w2, w3."""
    letters = {"gate": "w1", "up": "w3", "down": "w2"}
    return {
        f"ffn_{part}_exps": f"{prefix}.experts.{{}}.{letter}" for part, letter in letters.items()
    }


_GEMMA: Final = {"ffn_norm": "pre_feedforward_layernorm"}
_SHARED: Final = {f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in _THREE}
_SHARE: Final = {**_SHARED, "ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
_MIXTRAL: Final = {"ffn_gate_inp": "block_sparse_moe.gate", **_lettered("block_sparse_moe")}
_HUNYUAN: Final = {
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}
_GRANITE: Final = {
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    **_stacked("block_sparse_moe", up="input_linear.weight", down="output_linear.weight"),
    **dict.fromkeys(("ffn_gate_shexp", "ffn_up_shexp"), "shared_mlp.input_linear"),
    "ffn_down_shexp": "shared_mlp.output_linear",
}


def _mamba(prefix: str) -> dict[str, str]:
    """Return the names of a state space's parts."""
    return {
        "ssm_in": f"{prefix}.in_proj",
        "ssm_conv1d": f"{prefix}.conv1d",
        "ssm_x": f"{prefix}.x_proj",
        "ssm_dt": f"{prefix}.dt_proj",
        "ssm_a": f"{prefix}.A_log",
        "ssm_d": f"{prefix}.D",
        "ssm_norm": f"{prefix}.norm",
        "ssm_out": f"{prefix}.out_proj",
    }


def _mamba2(prefix: str) -> dict[str, str]:
    return {**_mamba(prefix), "ssm_dt": f"{prefix}.dt_bias"}


_DELTA: Final = {**_mamba2("linear_attn"), "post_attention_norm": "post_attention_layernorm"}
_FEED_FORWARD: Final = {f"ffn_{part}": f"feed_forward.{part}_proj" for part in _THREE}
_HYBRID: Final = {**_mamba2("mamba"), "ffn_norm": "pre_ff_layernorm", **_FEED_FORWARD}
_LFM2: Final = {
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "ffn_gate_inp": "feed_forward.gate",
    "exp_probs_b": "feed_forward.expert_bias",
    **_lettered("feed_forward"),
}


@dataclass(frozen=True, slots=True)
class NameMap:
    """The names of one architecture's checkpoints."""

    layer_parts: PartNames = field(default_factory=dict)
    """Parts of a layer that differ from the defaults."""
    model_parts: PartNames = field(default_factory=dict)
    layer: str = "model.layers.{}."


_GPT: Final = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_GPT_MODEL_PARTS: Final = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
}
_BLOOM: Final = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_BLOOM_MODEL_PARTS: Final = {
    "token_embd": "transformer.word_embeddings",
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
}
_MAMBA_MODEL_PARTS: Final = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f"}


def _bert_model_parts(prefix: str, norm: str) -> dict[str, str]:
    return {
        "token_embd": f"{prefix}.embeddings.word_embeddings",
        "position_embd": f"{prefix}.embeddings.position_embeddings",
        "token_types": f"{prefix}.embeddings.token_type_embeddings",
        "token_embd_norm": f"{prefix}.{norm}",
    }


NAME_MAPS: Final[Mapping[str, NameMap]] = {
    "BertModel": NameMap(
        {
            "attn_q": "attention.self.query",
            "attn_k": "attention.self.key",
            "attn_v": "attention.self.value",
            "attn_output": "attention.output.dense",
            "attn_output_norm": "attention.output.LayerNorm",
            "ffn_up": "intermediate.dense",
            "ffn_down": "output.dense",
            "layer_output_norm": "output.LayerNorm",
        },
        _bert_model_parts("bert", "embeddings.LayerNorm"),
        "bert.encoder.layer.{}.",
    ),
    "EuroBertModel": NameMap(),
    "ModernBertModel": NameMap(
        {
            "attn_norm": "attn_norm",
            "attn_qkv": "attn.Wqkv",
            "attn_output": "attn.Wo",
            "ffn_norm": "mlp_norm",
            "ffn_up": "mlp.Wi",
            "ffn_down": "mlp.Wo",
        },
        {
            "token_embd": "model.embeddings.tok_embeddings",
            "token_embd_norm": "model.embeddings.norm",
            "output_norm": "model.final_norm",
        },
    ),
    "NomicBertModel": NameMap(
        {
            "attn_qkv": "attn.Wqkv",
            "attn_output": "attn.out_proj",
            "attn_output_norm": "norm1",
            "ffn_up": "mlp.fc11",
            "ffn_gate": "mlp.fc12",
            "ffn_down": "mlp.fc2",
            "layer_output_norm": "norm2",
        },
        _bert_model_parts("nomic_bert", "emb_ln"),
        "nomic_bert.encoder.layers.{}.",
    ),
    "AfmoeForCausalLM": NameMap(
        {
            "ffn_norm": "pre_mlp_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            "ffn_gate_inp": "mlp.router.gate",
            "exp_probs_b": "mlp.expert_bias",
        }
    ),
    "BambaForCausalLM": NameMap(_HYBRID, {"output_norm": "model.final_layernorm"}),
    "BloomForCausalLM": NameMap(_BLOOM, _BLOOM_MODEL_PARTS, "transformer.h.{}."),
    "Ernie4_5_MoeForCausalLM": NameMap({"exp_probs_b": "mlp.moe_statics.e_score_correction_bias"}),
    "FalconForCausalLM": NameMap(
        {**_BLOOM, "attn_norm": "input_layernorm|ln_mlp", "attn_norm_2": "ln_attn"},
        _BLOOM_MODEL_PARTS,
        "transformer.h.{}.",
    ),
    "FalconH1ForCausalLM": NameMap(_HYBRID, {"output_norm": "model.final_layernorm"}),
    "FalconMambaForCausalLM": NameMap(
        {**_mamba("mixer"), "attn_norm": "norm"}, _MAMBA_MODEL_PARTS, "backbone.layers.{}."
    ),
    "GPT2LMHeadModel": NameMap(_GPT, _GPT_MODEL_PARTS, "transformer.h.{}."),
    "GPTBigCodeForCausalLM": NameMap(_GPT, _GPT_MODEL_PARTS, "transformer.h.{}."),
    "GPTNeoXForCausalLM": NameMap(
        {
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        {
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
        },
        "gpt_neox.layers.{}.",
    ),
    "Gemma2ForCausalLM": NameMap(_GEMMA),
    "Gemma3ForCausalLM": NameMap(_GEMMA),
    "Gemma4ForCausalLM": NameMap(
        {
            **_GEMMA,
            **_stacked("experts"),
            "ffn_gate_inp": "router.proj",
            "ffn_gate_inp.scale": "router.scale",
            "ffn_down_exps.scale": "router.per_expert_scale",
            "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
            "post_ffw_norm_1": "post_feedforward_layernorm_1",
            "post_ffw_norm_2": "post_feedforward_layernorm_2",
            "layer_output_scale": "layer_scalar",
            "inp_gate": "per_layer_input_gate",
            "proj": "per_layer_projection",
            "post_norm": "post_per_layer_input_norm",
        },
        {
            "per_layer_token_embd": "model.embed_tokens_per_layer",
            "per_layer_model_proj": "model.per_layer_model_projection",
            "per_layer_proj_norm": "model.per_layer_projection_norm",
        },
    ),
    "Glm4ForCausalLM": NameMap(
        {
            "ffn_up": "mlp.gate_up_proj",
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        }
    ),
    "GptOssForCausalLM": NameMap({"ffn_gate_inp": "mlp.router", **_stacked("mlp.experts")}),
    "GraniteMoeForCausalLM": NameMap(_GRANITE),
    "GraniteMoeHybridForCausalLM": NameMap(
        {
            **_mamba2("mamba"),
            **_GRANITE,
            **dict.fromkeys(("ffn_gate", "ffn_up"), "shared_mlp.input_linear"),
            "ffn_down": "shared_mlp.output_linear",
        }
    ),
    "GraniteMoeSharedForCausalLM": NameMap(_GRANITE),
    "HunYuanDenseV1ForCausalLM": NameMap(_HUNYUAN),
    "HunYuanMoEV1ForCausalLM": NameMap(
        {
            **_HUNYUAN,
            "ffn_gate_inp": "mlp.gate.wg",
            **{f"ffn_{part}_shexp": f"mlp.shared_mlp.{part}_proj" for part in _THREE},
        }
    ),
    "JambaForCausalLM": NameMap(
        {
            **_mamba("mamba"),
            **{f"ssm_{part}_norm": f"mamba.{part}_layernorm" for part in ("dt", "b", "c")},
            "ffn_norm": "pre_ff_layernorm",
            **_FEED_FORWARD,
            "ffn_gate_inp": "feed_forward.router",
            **{f"ffn_{part}_exps": f"feed_forward.experts.{{}}.{part}_proj" for part in _THREE},
        },
        {"output_norm": "model.final_layernorm"},
    ),
    "Lfm2ForCausalLM": NameMap(_LFM2, {"token_embd_norm": "model.embedding_norm"}),
    "Lfm2MoeForCausalLM": NameMap(_LFM2, {"token_embd_norm": "model.embedding_norm"}),
    "Llama4ForCausalLM": NameMap(
        {
            **_FEED_FORWARD,
            "ffn_gate_inp": "feed_forward.router",
            **_stacked("feed_forward.experts"),
            **{f"ffn_{part}_shexp": f"feed_forward.shared_expert.{part}_proj" for part in _THREE},
        }
    ),
    "Mamba2ForCausalLM": NameMap(
        {**_mamba2("mixer"), "attn_norm": "norm"}, _MAMBA_MODEL_PARTS, "backbone.layers.{}."
    ),
    "MambaForCausalLM": NameMap(
        {**_mamba("mixer"), "attn_norm": "norm"}, _MAMBA_MODEL_PARTS, "backbone.layers.{}."
    ),
    "MiniMaxM2ForCausalLM": NameMap(
        {**_MIXTRAL, "exp_probs_b": "block_sparse_moe.e_score_correction_bias"}
    ),
    "MixtralForCausalLM": NameMap(_MIXTRAL),
    "MptForCausalLM": NameMap(
        {
            "attn_norm": "norm_1",
            "ffn_norm": "norm_2",
            "attn_qkv": "attn.Wqkv",
            "attn_output": "attn.out_proj",
            "ffn_up": "ffn.up_proj",
            "ffn_down": "ffn.down_proj",
        },
        {"token_embd": "transformer.wte", "output_norm": "transformer.norm_f"},
        "transformer.blocks.{}.",
    ),
    "NemotronHForCausalLM": NameMap(
        {
            **_mamba2("mixer"),
            **{
                key: f"mixer.{name.partition('.')[2]}"
                for key, name in _ATTENTION.items()
                if "." in name
            },
            **{f"ffn_{part}": f"mixer.{part}_proj" for part in _THREE},
            "attn_norm": "norm",
            "ffn_gate_inp": "mixer.gate",
            "exp_probs_b": "mixer.gate.e_score_correction_bias",
            **{f"ffn_{part}_exps": f"mixer.experts.{{}}.{part}_proj" for part in _THREE},
            **{f"ffn_{part}_shexp": f"mixer.shared_experts.{part}_proj" for part in _THREE},
            "ffn_latent_down": "mixer.fc1_latent_proj",
            "ffn_latent_up": "mixer.fc2_latent_proj",
        },
        {"token_embd": "model.embeddings", "output_norm": "model.norm_f"},
    ),
    "Phi3ForCausalLM": NameMap({"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}),
    "PhiForCausalLM": NameMap(
        {"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
        {"output_norm": "model.final_layernorm"},
    ),
    "PhimoeForCausalLM": NameMap(_MIXTRAL),
    "Qwen2MoeForCausalLM": NameMap(_SHARE),
    "Qwen3NextForCausalLM": NameMap(
        {
            **_DELTA,
            **_SHARE,
            **dict.fromkeys(("attn_qkv", "attn_gate"), "linear_attn.in_proj_qkvz"),
            "ssm_ba": "linear_attn.in_proj_ba",
        }
    ),
    **dict.fromkeys(
        ("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
        NameMap(
            {
                **_DELTA,
                **_SHARE,
                "attn_qkv": "linear_attn.in_proj_qkv",
                "attn_gate": "linear_attn.in_proj_z",
                "ssm_alpha": "linear_attn.in_proj_a",
                "ssm_beta": "linear_attn.in_proj_b",
            }
        ),
    ),
    "Starcoder2ForCausalLM": NameMap({"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
}
"""By architecture; absent ones use the defaults."""
