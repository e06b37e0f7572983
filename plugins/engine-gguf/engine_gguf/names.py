"""Which Hugging Face weight a tensor of a GGUF file is, and how its rows lie there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_LAYER: Final = re.compile(r"blk\.(\d{1,6})\.(.+)")
_OUTSIDE: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INSIDE: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
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
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
}
_GEMMA: Final = {"ffn_norm": "pre_feedforward_layernorm"}
_SHARED: Final = {f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")}
_LETTERED: Final = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
_HUNYUAN: Final = {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}
_OTHERS: Final[Mapping[str, Mapping[str, str]]] = {
    "AfmoeForCausalLM": {
        "ffn_norm": "pre_mlp_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
        "ffn_gate_inp": "mlp.router.gate",
        "exp_probs_b": "mlp.expert_bias",
    },
    "Ernie4_5_MoeForCausalLM": {"exp_probs_b": "mlp.moe_statics.e_score_correction_bias"},
    "Gemma2ForCausalLM": _GEMMA,
    "Gemma3ForCausalLM": _GEMMA,
    "Glm4ForCausalLM": {
        "ffn_up": "mlp.gate_up_proj",
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
    },
    "GptOssForCausalLM": {"ffn_gate_inp": "mlp.router"},
    "HunYuanDenseV1ForCausalLM": _HUNYUAN,
    "HunYuanMoEV1ForCausalLM": {
        **_HUNYUAN,
        "ffn_gate_inp": "mlp.gate.wg",
        **{f"ffn_{part}_shexp": f"mlp.shared_mlp.{part}_proj" for part in ("gate", "up", "down")},
    },
    "MiniMaxM2ForCausalLM": {**_LETTERED, "exp_probs_b": "block_sparse_moe.e_score_correction_bias"},
    "MixtralForCausalLM": _LETTERED,
    "Phi3ForCausalLM": {"ffn_up": "mlp.gate_up_proj"},
    "Qwen2MoeForCausalLM": {**_SHARED, "ffn_gate_inp_shexp": "mlp.shared_expert_gate"},
    "Starcoder2ForCausalLM": {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
}
"""Of architectures whose checkpoints differ from most."""
_OFFSET_NORMS: Final = ("GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM")
_PAIRED: Final = frozenset(
    f"{name}ForCausalLM" for name in ("Llama", "Mistral", "Mixtral", "Arcee", "Granite", "Olmo", "SmolLM3")
)
_BARE: Final = ("attn_sinks", "exp_probs_b")
"""Whose names have no suffix in checkpoints."""
_FACTORS: Final = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Read with the settings: they are no weights."""


@dataclass(frozen=True, slots=True)
class Place:
    """What becomes of a tensor."""

    name: str
    """Of the Hugging Face weight, suffix included; with `{}` for the number of the expert."""
    paired_heads: int = 0
    """Rows of so many heads lie as turning neighbours, and are wanted as turning halves."""
    offset: float = 0.0
    """Is added: norms that multiply by one more than what is stored."""


class Names:
    """Those of one model, by its config."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._architecture = config["architectures"][0]
        self._inside = {**_INSIDE, **_OTHERS.get(self._architecture, {})}
        first, further = _count(config, "num_hidden_layers"), _count(config, "num_nextn_predict_layers")
        self._further = range(first, first + further)
        self._heads = {
            "attn_q": _count(config, "num_attention_heads"),
            "attn_k": _count(config, "num_key_value_heads", "num_attention_heads"),
        }

    def ignores(self, name: str) -> bool:
        """Say whether a tensor is no weight of the model: factors, and layers that only guess further tokens."""
        found = _LAYER.fullmatch(name)
        return name in _FACTORS or (found is not None and int(found[1]) in self._further)

    def place(self, name: str) -> Place | None:
        """Return where a tensor goes; None for one that there is no name for."""
        stem, _, suffix = name.rpartition(".")
        found = _LAYER.fullmatch(stem)
        part = found[2] if found else stem
        known = (self._inside if found else _OUTSIDE).get(part)
        if known is None or suffix not in ("weight", "bias"):
            return None
        prefix = f"model.layers.{int(found[1])}." if found else ""
        ending = "" if part in _BARE else f".{suffix}"
        return Place(
            f"{prefix}{known}{ending}",
            self._heads.get(part, 0) if self._architecture in _PAIRED else 0,
            -1.0 if self._architecture in _OFFSET_NORMS and part.endswith("norm") else 0.0,
        )


def _count(config: Mapping[str, Any], *names: str) -> int:
    """Return the first of these fields that is a count; 0 without one, for the model itself refuses what is none."""
    return next((config[name] for name in names if type(config.get(name)) is int and config[name] > 0), 0)
