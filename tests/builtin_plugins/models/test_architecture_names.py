"""Old and second names of architectures: the same model as under the present name."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from builtin_plugins.models.vision import spec as vision
from core.errors import ModelError
from core.plugin.registry import Registry
from core.testing.checkpoints import tiny_config
from core.testing.published.catalog import PUBLISHED

SpecOf = Callable[[str, Any], Any]
FALCON_7B = {
    "hidden_size": 284,
    "vocab_size": 300,
    "layer_norm_epsilon": 1e-5,
    "bias": False,
    "alibi": False,
    "multi_query": True,
    "parallel_attn": True,
}
"""Fields of config.json of tiiuae/falcon-7b with their present names; its sizes cut down."""
STABLELM = {
    "hidden_size": 64,
    "vocab_size": 300,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
    "use_qkv_bias": True,
}
"""Fields of config.json of stabilityai/stablelm-3b-4e1t with their present names."""
MINIMAX = {
    "hidden_size": 64,
    "vocab_size": 300,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000000,
    "hidden_act": "silu",
}
"""Fields of config.json of MiniMaxAI/MiniMax-Text-01 with their present names."""
MINIMAX_OLD = {
    **MINIMAX,
    "attn_type_list": [0, 1],
    "layernorm_full_attention_alpha": 3.5,
    "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_alpha": 2.5,
    "layernorm_linear_attention_beta": 0.5,
    "layernorm_mlp_alpha": 1.5,
    "layernorm_mlp_beta": 0.25,
    "postnorm": True,
    "rotary_dim": 16,
    "shared_intermediate_size": 0,
}
MINIMAX_NEW = {
    **MINIMAX,
    "layer_types": ["linear_attention", "full_attention"],
    "full_attn_alpha_factor": 3.5,
    "full_attn_beta_factor": 1.0,
    "linear_attn_alpha_factor": 2.5,
    "linear_attn_beta_factor": 0.5,
    "mlp_alpha_factor": 1.5,
    "mlp_beta_factor": 0.25,
    "partial_rotary_factor": 0.5,
}
SECOND_NAMES = {
    "LLaMAForCausalLM": "LlamaForCausalLM",
    "AquilaModel": "LlamaForCausalLM",
    "AquilaForCausalLM": "LlamaForCausalLM",
    "XverseForCausalLM": "LlamaForCausalLM",
    "PanguEmbeddedForCausalLM": "InternLMForCausalLM",
    "ChatGLMForConditionalGeneration": "ChatGLMModel",
    "TelechatForCausalLM": "TeleChat2ForCausalLM",
    "TeleChatForCausalLM": "TeleChat2ForCausalLM",
    "Grok1ForCausalLM": "Grok1ModelForCausalLM",
    "GteNewModel": "GteModel",
    "GteNewForSequenceClassification": "GteForSequenceClassification",
}
OLD_CONFIGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "RWForCausalLM": (
        "FalconForCausalLM",
        {**FALCON_7B, "model_type": "RefinedWebModel", "n_layer": 2, "n_head": 71},
        {**FALCON_7B, "num_hidden_layers": 2, "num_attention_heads": 71},
    ),
    "RWForCausalLM of 40B": (
        "FalconForCausalLM",
        {
            **FALCON_7B,
            "hidden_size": 64,
            "model_type": "RefinedWeb",
            "n_layer": 2,
            "n_head": 8,
            "n_head_kv": 2,
        },
        {
            **FALCON_7B,
            "hidden_size": 64,
            "new_decoder_architecture": True,
            "num_hidden_layers": 2,
            "num_attention_heads": 8,
            "num_kv_heads": 2,
        },
    ),
    "StableLMEpochForCausalLM": (
        "StableLmForCausalLM",
        {**STABLELM, "norm_eps": 1e-4, "rope_pct": 0.5},
        {**STABLELM, "layer_norm_eps": 1e-4, "partial_rotary_factor": 0.5},
    ),
    "MiniMaxText01ForCausalLM": ("MiniMaxForCausalLM", MINIMAX_OLD, MINIMAX_NEW),
    "MiniMaxM1ForCausalLM": ("MiniMaxForCausalLM", MINIMAX_OLD, MINIMAX_NEW),
}


@pytest.mark.parametrize("name", SECOND_NAMES)
def test_second_name_gives_the_same_model(name: str, spec_of: SpecOf) -> None:
    present = SECOND_NAMES[name]
    config = SimpleNamespace(**json.loads(tiny_config(present).to_json_string()))
    assert spec_of(name, config) == spec_of(present, config)


@pytest.mark.parametrize("name", OLD_CONFIGS)
def test_config_of_an_old_name_gives_the_present_model(name: str, spec_of: SpecOf) -> None:
    present, old, new = OLD_CONFIGS[name]
    architecture = name.partition(" ")[0]
    found = spec_of(architecture, SimpleNamespace(**old))
    assert found == spec_of(present, SimpleNamespace(**new))


def test_minimax_without_post_norm_is_rejected(spec_of: SpecOf) -> None:
    config = SimpleNamespace(**{**MINIMAX_OLD, "postnorm": False})
    with pytest.raises(ModelError, match="postnorm: got false"):
        spec_of("MiniMaxText01ForCausalLM", config)


@pytest.mark.parametrize("field", ["position_encoding_2d", "vision_config", "pre_seq_len"])
def test_other_models_under_chatglms_name_are_rejected(field: str, spec_of: SpecOf) -> None:
    config = SimpleNamespace(**PUBLISHED["ChatGLMModel"].config, **{field: 128})
    with pytest.raises(ModelError, match=field):
        spec_of("ChatGLMModel", config)


def test_later_openpangu_models_are_rejected(spec_of: SpecOf) -> None:
    config = SimpleNamespace(**PUBLISHED["InternLMForCausalLM"].config, param_sink_number=128)
    with pytest.raises(ModelError, match="param_sink_number is on"):
        spec_of("PanguEmbeddedForCausalLM", config)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("PanguUltraMoEForCausalLM", "param_sink_number"),
        ("Grok1ForCausalLM", "residual_moe"),
    ],
)
def test_later_models_under_a_published_name_are_rejected(
    name: str, field: str, spec_of: SpecOf
) -> None:
    stated = PUBLISHED[SECOND_NAMES.get(name, name)].config
    with pytest.raises(ModelError, match=f"{field} is on"):
        spec_of(name, SimpleNamespace(**stated, **{field: True}))


def test_every_published_architecture_is_native(registry: Registry) -> None:
    known = {registered.entry.name for registered in registry.entries("models")}
    assert sorted(set(PUBLISHED) - known) == []
    assert not any(vision.is_image_text(name) for name in PUBLISHED)
