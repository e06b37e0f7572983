"""What a Hugging Face config says, out of the settings of a GGUF file: one function for each architecture.

Names of settings are llama.cpp's; fields are those that the architecture here reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.api import ModelError, did_you_mean
from engine_gguf.header import Stored
from engine_gguf.settings import Settings

Fields = dict[str, Any]
_GEMMA_SQUARES: Final = {"gemma2": 46, "gemma3": 62}
"""Layers of the models whose queries are scaled by the width of a head's share of the embedding, not by that of a head."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a config is made from."""

    settings: Settings
    tensors: Mapping[str, Stored]
    factors: Mapping[str, list[float]]
    """What rotary angles are divided by, by the names of the tensors that say it."""

    def has(self, name: str) -> bool:
        """Say whether the file has a tensor."""
        return name in self.tensors


def make_config(given: Given) -> Fields:
    """Return the config. Raises `ModelError` for an architecture that is not read, or facts that cannot be."""
    name = given.settings.architecture
    if name not in ARCHITECTURES:
        raise ModelError(
            f"its architecture {name!r:.60} is not read from GGUF files{did_you_mean(name, ARCHITECTURES) or '.'} Read: "
            f"{', '.join(sorted(ARCHITECTURES))}. Describe it with --hf-config-path if it is one of these under another name."
        )
    architecture, model_type, more = ARCHITECTURES[name]
    fields = {**_common(given), "architectures": [architecture], "model_type": model_type}
    return {**fields, **more(given, fields)}


def _common(given: Given) -> Fields:
    settings = given.settings
    embedding = given.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError("it has no matrix token_embd.weight, so it is no language model. Take another file.")
    hidden, heads = settings.count("embedding_length"), settings.count("attention.head_count")
    layers = settings.count("block_count")
    if layers > len(given.tensors) or hidden != embedding.shape[1]:
        raise ModelError(
            f"its settings say {layers} layers of width {hidden}, and it has {len(given.tensors)} tensors and an embedding of "
            f"width {embedding.shape[1]}. Take another file."
        )
    head = settings.count("attention.key_length", max(1, hidden // heads))
    turned = settings.count("rope.dimension_count", head)
    rope: Fields = {"rope_type": "default", "rope_theta": settings.number("rope.freq_base", 10_000.0)}
    if turned != head:
        rope["partial_rotary_factor"] = turned / head
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": settings.count("feed_forward_length", hidden),
        "num_attention_heads": heads,
        "num_key_value_heads": settings.count("attention.head_count_kv", heads),
        "head_dim": head,
        "rms_norm_eps": settings.number("attention.layer_norm_rms_epsilon", 1e-6),
        "max_position_embeddings": settings.count("context_length", 2048),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": not given.has("output.weight"),
        "rope_parameters": {**rope, **_scaling(given)},
    }


def _scaling(given: Given) -> Fields:
    """Return how rotary positions are stretched."""
    settings = given.settings
    context = settings.count("context_length", 2048)
    original = settings.count("rope.scaling.original_context_length", context)
    factors = given.factors.get("rope_freqs.weight")
    if factors is not None:  # as Llama 3.1 has them: the same whatever the length
        same = {"short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
        return {"rope_type": "longrope", "original_max_position_embeddings": original, **same}
    if "rope_factors_long.weight" in given.factors:
        attention = (
            {"attention_factor": settings.number("rope.scaling.attn_factor")}
            if settings.own("rope.scaling.attn_factor")
            else {}
        )
        return {
            "rope_type": "longrope",
            "short_factor": given.factors["rope_factors_short.weight"],
            "long_factor": given.factors["rope_factors_long.weight"],
            "original_max_position_embeddings": original,
            **attention,
        }
    kind = settings.own("rope.scaling.type")
    if kind in (None, "none"):
        return {}
    scaling = {"rope_type": kind, "factor": settings.number("rope.scaling.factor", 1.0)}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = original
        for name in ("beta_fast", "beta_slow"):
            if settings.own(f"rope.scaling.yarn_{name}") is not None:
                scaling[name] = settings.number(f"rope.scaling.yarn_{name}")
    return scaling


def _plain(given: Given, fields: Fields) -> Fields:
    del given, fields
    return {}


def _llama(given: Given, fields: Fields) -> Fields:
    """Return Llama's facts, or Mixtral's, which llama.cpp calls by the same name."""
    experts = given.settings.count("expert_count", 0, least=0)
    if experts:
        found = {"num_local_experts": experts, "num_experts_per_tok": given.settings.count("expert_used_count")}
        return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **found}
    bias = {"attention_bias": given.has("blk.0.attn_q.bias"), "mlp_bias": given.has("blk.0.ffn_up.bias")}
    del fields
    return bias


def _experts(given: Given, *, renormalized: bool) -> Fields:
    settings = given.settings
    return {
        "num_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "moe_intermediate_size": settings.count("expert_feed_forward_length"),
        "norm_topk_prob": renormalized,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _qwen2_moe(given: Given, fields: Fields) -> Fields:
    del fields
    shared = given.settings.count("expert_shared_feed_forward_length")
    return {**_experts(given, renormalized=False), "shared_expert_intermediate_size": shared}


def _qwen3_moe(given: Given, fields: Fields) -> Fields:
    del fields
    return _experts(given, renormalized=True)


def _gemma(given: Given, fields: Fields) -> Fields:
    """Return what Gemma 2 and 3 have in common."""
    settings = given.settings
    squares = fields["num_hidden_layers"] == _GEMMA_SQUARES.get(settings.architecture)
    caps = {
        "attn_logit_softcapping": settings.own("attn_logit_softcapping"),
        "final_logit_softcapping": settings.own("final_logit_softcapping"),
    }
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": fields["hidden_size"] // fields["num_attention_heads"]
        if squares
        else fields["head_dim"],
        "sliding_window": settings.count("attention.sliding_window", 4096),
        **caps,
    }


def _gemma3(given: Given, fields: Fields) -> Fields:
    local = {"rope_type": "default", "rope_theta": given.settings.number("rope.freq_base_swa", 10_000.0)}
    ropes = {"full_attention": fields["rope_parameters"], "sliding_attention": local}
    return {**_gemma(given, fields), "rope_parameters": ropes, "sliding_window_pattern": 6}


def _gemma1(given: Given, fields: Fields) -> Fields:
    del given, fields
    return {"hidden_activation": "gelu_pytorch_tanh"}


def _phi3(given: Given, fields: Fields) -> Fields:
    original = given.settings.count("rope.scaling.original_context_length", fields["max_position_embeddings"])
    window = given.settings.count("attention.sliding_window", 0, least=0)
    return {"original_max_position_embeddings": original, "sliding_window": window or None}


def _deepseek2(given: Given, fields: Fields) -> Fields:
    """Return DeepSeek's facts; scores by sigmoid are those of V3."""
    settings = given.settings
    turned = settings.count("rope.dimension_count")
    key = settings.count("attention.key_length_mla", settings.count("attention.key_length"))
    sigmoid = settings.own("expert_gating_func") == 2
    groups, used = settings.count("expert_group_count", 1), settings.count("expert_group_used_count", 1)
    rope = {key: value for key, value in fields["rope_parameters"].items() if key != "partial_rotary_factor"}
    growth = settings.own("rope.scaling.yarn_log_multiplier")
    if rope["rope_type"] == "yarn" and growth:
        weight = settings.number("rope.scaling.yarn_log_multiplier") / 0.1
        rope |= {"mscale": weight, "mscale_all_dim": weight}
    return {
        "architectures": ["DeepseekV3ForCausalLM" if sigmoid else "DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v3" if sigmoid else "deepseek_v2",
        "num_key_value_heads": fields["num_attention_heads"],
        "q_lora_rank": settings.count("attention.q_lora_rank") if settings.own("attention.q_lora_rank") else None,
        "kv_lora_rank": settings.count("attention.kv_lora_rank"),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": key - turned,
        "head_dim": turned,
        "v_head_dim": settings.count("attention.value_length_mla", settings.count("attention.value_length")),
        "first_k_dense_replace": settings.count("leading_dense_block_count", 0, least=0),
        "moe_intermediate_size": settings.count("expert_feed_forward_length"),
        "n_routed_experts": settings.count("expert_count"),
        "n_shared_experts": settings.count("expert_shared_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "routed_scaling_factor": settings.number("expert_weights_scale", 1.0),
        "norm_topk_prob": settings.flag(f"{settings.architecture}.expert_weights_norm"),
        "topk_method": ("noaux_tc" if sigmoid else "group_limited_greedy") if groups > 1 or sigmoid else "greedy",
        "n_group": groups,
        "topk_group": used,
        "rope_parameters": rope,
    }


def _gpt_oss(given: Given, fields: Fields) -> Fields:
    settings, rope = given.settings, dict(fields["rope_parameters"])
    if rope["rope_type"] == "yarn":
        rope |= {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}
    return {
        "num_local_experts": settings.count("expert_count"),
        "num_experts_per_tok": settings.count("expert_used_count"),
        "intermediate_size": settings.count("expert_feed_forward_length"),
        "sliding_window": settings.count("attention.sliding_window", 128),
        "attention_bias": True,
        "rope_parameters": rope,
    }


ARCHITECTURES: Final[Mapping[str, tuple[str, str, Callable[[Given, Fields], Fields]]]] = {
    "llama": ("LlamaForCausalLM", "llama", _llama),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", _plain),
    "qwen2moe": ("Qwen2MoeForCausalLM", "qwen2_moe", _qwen2_moe),
    "qwen3": ("Qwen3ForCausalLM", "qwen3", _plain),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe", _qwen3_moe),
    "gemma": ("GemmaForCausalLM", "gemma", _gemma1),
    "gemma2": ("Gemma2ForCausalLM", "gemma2", _gemma),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text", _gemma3),
    "phi3": ("Phi3ForCausalLM", "phi3", _phi3),
    "deepseek2": ("DeepseekV2ForCausalLM", "deepseek_v2", _deepseek2),
    "gpt-oss": ("GptOssForCausalLM", "gpt_oss", _gpt_oss),
}
"""llama.cpp's name, and the architecture, its model type, and the fields that it has beside those of all."""
