"""Which architectures are read from GGUF files, and what each config has beside what all have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from core.api import ModelError
from engine_gguf import encoders, gpts, mixtures, recurrent
from engine_gguf.given import Fields, Given

_GEMMA_SQUARES: Final = {"gemma2": 46, "gemma3": 62}
"""Layers of the models whose queries are scaled by the width of a head's share of the embedding,
not by that of a head.
"""


def _plain(given: Given, fields: Fields) -> Fields:
    del given, fields
    return {}


def _llama(given: Given, fields: Fields) -> Fields:
    """Return Llama's facts, or those of Mistral and Mixtral, which llama.cpp calls by the same
    name.
    """
    window = given.settings.count("attention.sliding_window", 0, least=0)
    if given.settings.count("expert_count", 0, least=0):
        return {**mixtures.mixtral(given), "sliding_window": window or None}
    if window and not fields["attention_bias"]:
        return {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": window,
        }
    return {}


def _mistral3(given: Given, fields: Fields) -> Fields:
    """Return the facts of Mistral Small 3, which are Llama's."""
    del fields
    if given.settings.own("attention.temperature_scale"):
        raise ModelError(
            "its queries grow with their position (attention.temperature_scale), which is not "
            "served."
        )
    return {}


def _qwen2(given: Given, fields: Fields) -> Fields:
    window = given.windows(fields["num_hidden_layers"], 1)
    return {**window, "use_sliding_window": "layer_types" in window}


def _gemma(given: Given, fields: Fields) -> Fields:
    """Return what Gemma 2 and 3 have in common."""
    settings = given.settings
    squares = fields["num_hidden_layers"] == _GEMMA_SQUARES.get(settings.architecture)
    each = fields["hidden_size"] // fields["num_attention_heads"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": each if squares else fields["head_dim"],
        "attn_logit_softcapping": settings.own("attn_logit_softcapping"),
        "final_logit_softcapping": settings.own("final_logit_softcapping"),
    }


def _gemma1(given: Given, fields: Fields) -> Fields:
    del given, fields
    return {"hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(given: Given, fields: Fields) -> Fields:
    windows = given.windows(fields["num_hidden_layers"], 2)
    return {
        **_gemma(given, fields),
        **(windows if "layer_types" in windows else {"sliding_window": 4096}),
    }


def _gemma3(given: Given, fields: Fields) -> Fields:
    local = {
        "rope_type": "default",
        "rope_theta": given.settings.number("rope.freq_base_swa", 10_000.0),
    }
    ropes = {"full_attention": fields["rope_parameters"], "sliding_attention": local}
    return {
        **_gemma(given, fields),
        **given.windows(fields["num_hidden_layers"], 6),
        "rope_parameters": ropes,
    }


def _phi3(given: Given, fields: Fields) -> Fields:
    original = given.settings.count(
        "rope.scaling.original_context_length", fields["max_position_embeddings"]
    )
    window = given.settings.count("attention.sliding_window", 0, least=0)
    return {"original_max_position_embeddings": original, "sliding_window": window or None}


def _smollm3(given: Given, fields: Fields) -> Fields:
    del given, fields
    return {"no_rope_layer_interval": 4, "use_sliding_window": False}


def _olmo(given: Given, fields: Fields) -> Fields:
    del fields
    return given.numbers(clip_qkv="attention.clamp_kqv")


def _olmo2(given: Given, fields: Fields) -> Fields:
    """Return OLMo 2's facts, or those of OLMo 3, some of whose layers have windows."""
    windows = given.windows(fields["num_hidden_layers"], 4)
    if "layer_types" not in windows:
        return {}
    full = fields["rope_parameters"]
    theta = given.settings.number("rope.freq_base_swa", full["rope_theta"])
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


def _layer_norms(given: Given, fields: Fields) -> Fields:
    """Return the number under a layer norm's root, by all names that there are for it."""
    del fields
    eps = given.settings.number("attention.layer_norm_epsilon", 1e-5)
    return dict.fromkeys(("layer_norm_eps", "norm_epsilon", "norm_eps"), eps)


def _starcoder2(given: Given, fields: Fields) -> Fields:
    window = given.settings.count("attention.sliding_window", 0, least=0)
    use = {
        "use_bias": fields["attention_bias"],
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": window or None,
    }
    return {**_layer_norms(given, fields), **use}


def _command_r(given: Given, fields: Fields) -> Fields:
    normed = {"use_qk_norm": given.has("blk.0.attn_q_norm.weight")}
    return {**_layer_norms(given, fields), **given.numbers(logit_scale="logit_scale"), **normed}


def _cohere2(given: Given, fields: Fields) -> Fields:
    return {**_command_r(given, fields), **given.windows(fields["num_hidden_layers"], 4)}


def _stablelm(given: Given, fields: Fields) -> Fields:
    normed = given.has("blk.0.attn_q_norm.weight")
    biased = fields["attention_bias"]
    parallel = not given.has("blk.0.ffn_norm.weight")
    own = {"qk_layernorm": normed, "use_qkv_bias": biased, "use_parallel_residual": parallel}
    return {**_layer_norms(given, fields), **own}


def _exaone4(given: Given, fields: Fields) -> Fields:
    return given.windows(fields["num_hidden_layers"], 4)


def _ernie4_5(given: Given, fields: Fields) -> Fields:
    del given
    return {"use_bias": fields["attention_bias"]}


ARCHITECTURES: Final[Mapping[str, tuple[str, str, Callable[[Given, Fields], Fields]]]] = {
    "llama": ("LlamaForCausalLM", "llama", _llama),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", _qwen2),
    "qwen2moe": ("Qwen2MoeForCausalLM", "qwen2_moe", mixtures.qwen2_moe),
    "qwen3": ("Qwen3ForCausalLM", "qwen3", _plain),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe", mixtures.qwen3_moe),
    "gemma": ("GemmaForCausalLM", "gemma", _gemma1),
    "gemma2": ("Gemma2ForCausalLM", "gemma2", _gemma2),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text", _gemma3),
    "phi3": ("Phi3ForCausalLM", "phi3", _phi3),
    "deepseek2": ("DeepseekV2ForCausalLM", "deepseek_v2", mixtures.deepseek2),
    "gpt-oss": ("GptOssForCausalLM", "gpt_oss", mixtures.gpt_oss),
    "afmoe": ("AfmoeForCausalLM", "afmoe", mixtures.afmoe),
    "arcee": ("ArceeForCausalLM", "arcee", _plain),
    "cohere2": ("Cohere2ForCausalLM", "cohere2", _cohere2),
    "command-r": ("CohereForCausalLM", "cohere", _command_r),
    "dots1": ("Dots1ForCausalLM", "dots1", mixtures.grouped),
    "ernie4_5": ("Ernie4_5ForCausalLM", "ernie4_5", _ernie4_5),
    "ernie4_5-moe": ("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", mixtures.ernie4_5_moe),
    "exaone4": ("Exaone4ForCausalLM", "exaone4", _exaone4),
    "glm4": ("Glm4ForCausalLM", "glm4", _plain),
    "glm4moe": ("Glm4MoeForCausalLM", "glm4_moe", mixtures.glm4_moe),
    "granite": ("GraniteForCausalLM", "granite", mixtures.granite),
    "hunyuan-dense": ("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", _plain),
    "hunyuan-moe": ("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", mixtures.hunyuan_moe),
    "minimax-m2": ("MiniMaxM2ForCausalLM", "minimax_m2", mixtures.minimax_m2),
    "olmo": ("OlmoForCausalLM", "olmo", _olmo),
    "olmo2": ("Olmo2ForCausalLM", "olmo2", _olmo2),
    "olmoe": ("OlmoeForCausalLM", "olmoe", mixtures.olmoe),
    "seed_oss": ("SeedOssForCausalLM", "seed_oss", _plain),
    "smollm3": ("SmolLM3ForCausalLM", "smollm3", _smollm3),
    "stablelm": ("StableLmForCausalLM", "stablelm", _stablelm),
    "starcoder2": ("Starcoder2ForCausalLM", "starcoder2", _starcoder2),
    "granitemoe": ("GraniteMoeForCausalLM", "granitemoe", mixtures.granite_moe),
    "llama4": ("Llama4ForCausalLM", "llama4_text", mixtures.llama4),
    "gemma4": ("Gemma4ForCausalLM", "gemma4_text", mixtures.gemma4),
    "phimoe": ("PhimoeForCausalLM", "phimoe", mixtures.phimoe),
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
    "gpt2": ("GPT2LMHeadModel", "gpt2", gpts.gpt2),
    "gptneox": ("GPTNeoXForCausalLM", "gpt_neox", gpts.gpt_neox),
    "starcoder": ("GPTBigCodeForCausalLM", "gpt_bigcode", gpts.gpt_bigcode),
    "bloom": ("BloomForCausalLM", "bloom", gpts.bloom),
    "mpt": ("MptForCausalLM", "mpt", gpts.mpt),
    "falcon": ("FalconForCausalLM", "falcon", gpts.falcon),
    "phi2": ("PhiForCausalLM", "phi", gpts.phi),
    "bert": ("BertModel", "bert", encoders.bert),
    "nomic-bert": ("NomicBertModel", "nomic_bert", encoders.nomic_bert),
    "modern-bert": ("ModernBertModel", "modernbert", encoders.modern_bert),
    "eurobert": ("EuroBertModel", "eurobert", encoders.eurobert),
    "mistral3": ("LlamaForCausalLM", "llama", _mistral3),
    "qwen2vl": ("Qwen2ForCausalLM", "qwen2", _qwen2),
    "qwen3vl": ("Qwen3ForCausalLM", "qwen3", _plain),
    "qwen3vlmoe": ("Qwen3MoeForCausalLM", "qwen3_moe", mixtures.qwen3_moe),
    "minicpm3": ("MiniCPM3ForCausalLM", "minicpm3", mixtures.minicpm3),
    "nemotron": ("NemotronForCausalLM", "nemotron", gpts.nemotron),
}
"""llama.cpp's name, and the architecture, its model type, and the fields that it has beside those
of all.
"""
