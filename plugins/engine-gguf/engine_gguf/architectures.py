"""Architectures read from GGUF files, and the config fields that each adds to the common ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from core.api import ModelError
from engine_gguf import encoders, gpt_family, moe_family, recurrent
from engine_gguf.config_source import ConfigSource, Fields

_GEMMA_SQUARES: Final = {"gemma2": 46, "gemma3": 62}
"""Layer counts of the models with queries scaled by hidden_size / num_heads instead of head_dim."""


def _plain(source: ConfigSource, fields: Fields) -> Fields:
    del source, fields
    return {}


def _llama(source: ConfigSource, fields: Fields) -> Fields:
    """Return Llama's fields, or those of Mistral and Mixtral, which share its llama.cpp name."""
    window = source.settings.count("attention.sliding_window", 0, least=0)
    if source.settings.count("expert_count", 0, least=0):
        return {**moe_family.mixtral(source), "sliding_window": window or None}
    if window and not fields["attention_bias"]:
        return {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": window,
        }
    return {}


def _mistral3(source: ConfigSource, fields: Fields) -> Fields:
    """Return the fields of Mistral Small 3, which are Llama's."""
    del fields
    if source.settings.own("attention.temperature_scale"):
        raise ModelError(
            "attention.temperature_scale is set; queries scaled by position are not supported. "
            "Use another model."
        )
    return {}


def _qwen2(source: ConfigSource, fields: Fields) -> Fields:
    window = source.windows(fields["num_hidden_layers"], 1)
    return {**window, "use_sliding_window": "layer_types" in window}


def _gemma(source: ConfigSource, fields: Fields) -> Fields:
    """Return the fields that Gemma 2 and 3 share."""
    settings = source.settings
    squares = fields["num_hidden_layers"] == _GEMMA_SQUARES.get(settings.architecture)
    each = fields["hidden_size"] // fields["num_attention_heads"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": each if squares else fields["head_dim"],
        "attn_logit_softcapping": settings.own("attn_logit_softcapping"),
        "final_logit_softcapping": settings.own("final_logit_softcapping"),
    }


def _gemma1(source: ConfigSource, fields: Fields) -> Fields:
    del source, fields
    return {"hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(source: ConfigSource, fields: Fields) -> Fields:
    windows = source.windows(fields["num_hidden_layers"], 2)
    return {
        **_gemma(source, fields),
        **(windows if "layer_types" in windows else {"sliding_window": 4096}),
    }


def _gemma3(source: ConfigSource, fields: Fields) -> Fields:
    local = {
        "rope_type": "default",
        "rope_theta": source.settings.number("rope.freq_base_swa", 10_000.0),
    }
    ropes = {"full_attention": fields["rope_parameters"], "sliding_attention": local}
    return {
        **_gemma(source, fields),
        **source.windows(fields["num_hidden_layers"], 6),
        "rope_parameters": ropes,
    }


def _phi3(source: ConfigSource, fields: Fields) -> Fields:
    original = source.settings.count(
        "rope.scaling.original_context_length", fields["max_position_embeddings"]
    )
    window = source.settings.count("attention.sliding_window", 0, least=0)
    return {"original_max_position_embeddings": original, "sliding_window": window or None}


def _smollm3(source: ConfigSource, fields: Fields) -> Fields:
    del source, fields
    return {"no_rope_layer_interval": 4, "use_sliding_window": False}


def _olmo(source: ConfigSource, fields: Fields) -> Fields:
    del fields
    return source.numbers(clip_qkv="attention.clamp_kqv")


def _olmo2(source: ConfigSource, fields: Fields) -> Fields:
    """Return OLMo 2's fields, or those of OLMo 3, which has sliding-window layers."""
    windows = source.windows(fields["num_hidden_layers"], 4)
    if "layer_types" not in windows:
        return {}
    full = fields["rope_parameters"]
    theta = source.settings.number("rope.freq_base_swa", full["rope_theta"])
    ropes = {
        "full_attention": full,
        "sliding_attention": {"rope_type": "default", "rope_theta": theta},
    }
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        **windows,
        "rope_parameters": ropes,
    }


def _layer_norms(source: ConfigSource, fields: Fields) -> Fields:
    """Return the epsilon of layer norms, under all names that configs use."""
    del fields
    eps = source.settings.number("attention.layer_norm_epsilon", 1e-5)
    return dict.fromkeys(("layer_norm_eps", "norm_epsilon", "norm_eps"), eps)


def _starcoder2(source: ConfigSource, fields: Fields) -> Fields:
    window = source.settings.count("attention.sliding_window", 0, least=0)
    use = {
        "use_bias": fields["attention_bias"],
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": window or None,
    }
    return {**_layer_norms(source, fields), **use}


def _command_r(source: ConfigSource, fields: Fields) -> Fields:
    normed = {"use_qk_norm": source.has("blk.0.attn_q_norm.weight")}
    return {**_layer_norms(source, fields), **source.numbers(logit_scale="logit_scale"), **normed}


def _cohere2(source: ConfigSource, fields: Fields) -> Fields:
    return {**_command_r(source, fields), **source.windows(fields["num_hidden_layers"], 4)}


def _stablelm(source: ConfigSource, fields: Fields) -> Fields:
    normed = source.has("blk.0.attn_q_norm.weight")
    biased = fields["attention_bias"]
    parallel = not source.has("blk.0.ffn_norm.weight")
    own = {"qk_layernorm": normed, "use_qkv_bias": biased, "use_parallel_residual": parallel}
    return {**_layer_norms(source, fields), **own}


def _exaone4(source: ConfigSource, fields: Fields) -> Fields:
    return source.windows(fields["num_hidden_layers"], 4)


def _ernie4_5(source: ConfigSource, fields: Fields) -> Fields:
    del source
    return {"use_bias": fields["attention_bias"]}


ARCHITECTURES: Final[Mapping[str, tuple[str, str, Callable[[ConfigSource, Fields], Fields]]]] = {
    "llama": ("LlamaForCausalLM", "llama", _llama),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", _qwen2),
    "qwen2moe": ("Qwen2MoeForCausalLM", "qwen2_moe", moe_family.qwen2_moe),
    "qwen3": ("Qwen3ForCausalLM", "qwen3", _plain),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe", moe_family.qwen3_moe),
    "gemma": ("GemmaForCausalLM", "gemma", _gemma1),
    "gemma2": ("Gemma2ForCausalLM", "gemma2", _gemma2),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text", _gemma3),
    "phi3": ("Phi3ForCausalLM", "phi3", _phi3),
    "deepseek2": ("DeepseekV2ForCausalLM", "deepseek_v2", moe_family.deepseek2),
    "gpt-oss": ("GptOssForCausalLM", "gpt_oss", moe_family.gpt_oss),
    "afmoe": ("AfmoeForCausalLM", "afmoe", moe_family.afmoe),
    "arcee": ("ArceeForCausalLM", "arcee", _plain),
    "cohere2": ("Cohere2ForCausalLM", "cohere2", _cohere2),
    "command-r": ("CohereForCausalLM", "cohere", _command_r),
    "dots1": ("Dots1ForCausalLM", "dots1", moe_family.grouped),
    "ernie4_5": ("Ernie4_5ForCausalLM", "ernie4_5", _ernie4_5),
    "ernie4_5-moe": ("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", moe_family.ernie4_5_moe),
    "exaone4": ("Exaone4ForCausalLM", "exaone4", _exaone4),
    "glm4": ("Glm4ForCausalLM", "glm4", _plain),
    "glm4moe": ("Glm4MoeForCausalLM", "glm4_moe", moe_family.glm4_moe),
    "granite": ("GraniteForCausalLM", "granite", moe_family.granite),
    "hunyuan-dense": ("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", _plain),
    "hunyuan-moe": ("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", moe_family.hunyuan_moe),
    "minimax-m2": ("MiniMaxM2ForCausalLM", "minimax_m2", moe_family.minimax_m2),
    "olmo": ("OlmoForCausalLM", "olmo", _olmo),
    "olmo2": ("Olmo2ForCausalLM", "olmo2", _olmo2),
    "olmoe": ("OlmoeForCausalLM", "olmoe", moe_family.olmoe),
    "seed_oss": ("SeedOssForCausalLM", "seed_oss", _plain),
    "smollm3": ("SmolLM3ForCausalLM", "smollm3", _smollm3),
    "stablelm": ("StableLmForCausalLM", "stablelm", _stablelm),
    "starcoder2": ("Starcoder2ForCausalLM", "starcoder2", _starcoder2),
    "granitemoe": ("GraniteMoeForCausalLM", "granitemoe", moe_family.granite_moe),
    "llama4": ("Llama4ForCausalLM", "llama4_text", moe_family.llama4),
    "gemma4": ("Gemma4ForCausalLM", "gemma4_text", moe_family.gemma4),
    "phimoe": ("PhimoeForCausalLM", "phimoe", moe_family.phimoe),
    "qwen3next": ("Qwen3NextForCausalLM", "qwen3_next", recurrent.qwen3_next),
    "qwen35": ("Qwen3_5ForCausalLM", "qwen3_5_text", recurrent.qwen3_5),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", recurrent.qwen3_5_moe),
    "lfm2": ("Lfm2ForCausalLM", "lfm2", recurrent.lfm2),
    "lfm2moe": ("Lfm2MoeForCausalLM", "lfm2_moe", recurrent.lfm2_moe),
    "mamba": ("MambaForCausalLM", "mamba", recurrent.mamba),
    "mamba2": ("Mamba2ForCausalLM", "mamba2", recurrent.mamba2),
    "jamba": ("JambaForCausalLM", "jamba", recurrent.jamba),
    "falcon-h1": ("FalconH1ForCausalLM", "falcon_h1", recurrent.falcon_h1),
    "granitehybrid": ("GraniteMoeHybridForCausalLM", "granitemoehybrid", recurrent.granite_hybrid),
    "nemotron_h": ("NemotronHForCausalLM", "nemotron_h", recurrent.nemotron_h),
    "nemotron_h_moe": ("NemotronHForCausalLM", "nemotron_h", recurrent.nemotron_h),
    "gpt2": ("GPT2LMHeadModel", "gpt2", gpt_family.gpt2),
    "gptneox": ("GPTNeoXForCausalLM", "gpt_neox", gpt_family.gpt_neox),
    "starcoder": ("GPTBigCodeForCausalLM", "gpt_bigcode", gpt_family.gpt_bigcode),
    "bloom": ("BloomForCausalLM", "bloom", gpt_family.bloom),
    "mpt": ("MptForCausalLM", "mpt", gpt_family.mpt),
    "falcon": ("FalconForCausalLM", "falcon", gpt_family.falcon),
    "phi2": ("PhiForCausalLM", "phi", gpt_family.phi),
    "bert": ("BertModel", "bert", encoders.bert),
    "nomic-bert": ("NomicBertModel", "nomic_bert", encoders.nomic_bert),
    "modern-bert": ("ModernBertModel", "modernbert", encoders.modern_bert),
    "eurobert": ("EuroBertModel", "eurobert", encoders.eurobert),
    "mistral3": ("LlamaForCausalLM", "llama", _mistral3),
    "qwen2vl": ("Qwen2ForCausalLM", "qwen2", _qwen2),
    "qwen3vl": ("Qwen3ForCausalLM", "qwen3", _plain),
    "qwen3vlmoe": ("Qwen3MoeForCausalLM", "qwen3_moe", moe_family.qwen3_moe),
    "minicpm3": ("MiniCPM3ForCausalLM", "minicpm3", moe_family.minicpm3),
    "nemotron": ("NemotronForCausalLM", "nemotron", gpt_family.nemotron),
}
"""By llama.cpp's name: the architecture, its model type, and a function for its own fields."""
