"""config.json files as published, with old spellings: specs are right without any weight."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from core.config import EngineConfig
from core.config.sections import ModelConfig
from core.model_spec.decoder import DecoderSpec
from core.model_spec.layer import MoeSpec
from core.model_spec.rope import Llama3Scaling, LongScaling
from core.models.layers.loading import read_model
from core.plugin.registry import Registry


class Facts(NamedTuple):
    """The expected spec of a model."""

    context: int
    eos: tuple[int, ...]
    heads: tuple[int, int, int]
    """Heads, key-value heads, head size."""
    theta: float | None
    rotary_size: int | None
    windows: list[tuple[int | None, int]]
    """Runs of layers with the same window, the first two."""
    tied: bool = False


def dense(
    architecture: str, hidden: int, width: int, layers: int, heads: int, kv_heads: int, **rest: Any
) -> Any:
    return {
        "architectures": [architecture],
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5,
        "use_cache": True,
        "rope_scaling": None,
        **rest,
    }


LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
LONG = {"long_factor": [2.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"}
QWEN = {
    "max_window_layers": 28,
    "use_sliding_window": False,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 256, "query_pre_attn_scalar": 256}
PHI = {
    "original_max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "eos_token_id": 32000,
    "vocab_size": 32064,
}
PHI_CODE = {
    "AutoConfig": "configuration_phi3.Phi3Config",
    "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
}
PUBLISHED: dict[str, tuple[dict[str, Any], Facts]] = {
    "Llama-3.1-8B-Instruct": (
        dense(
            "LlamaForCausalLM",
            4096,
            14336,
            32,
            32,
            8,
            max_position_embeddings=131072,
            vocab_size=128256,
        )
        | {
            "rope_scaling": LLAMA3,
            "rope_theta": 500000.0,
            "eos_token_id": [128001, 128008, 128009],
        },
        Facts(131072, (128001, 128008, 128009), (32, 8, 128), 5e5, 128, [(None, 32)]),
    ),
    "Llama-2-7b": (
        dense(
            "LlamaForCausalLM",
            4096,
            11008,
            32,
            32,
            32,
            max_position_embeddings=4096,
            vocab_size=32000,
        )
        | {"eos_token_id": 2, "pretraining_tp": 1, "tie_word_embeddings": False},
        Facts(4096, (2,), (32, 32, 128), 1e4, 128, [(None, 32)]),
    ),
    "Mistral-7B-v0.1": (
        dense(
            "MistralForCausalLM",
            4096,
            14336,
            32,
            32,
            8,
            max_position_embeddings=32768,
            vocab_size=32000,
        )
        | {"rope_theta": 10000.0, "sliding_window": 4096, "eos_token_id": 2},
        Facts(32768, (2,), (32, 8, 128), 1e4, 128, [(4096, 32)]),
    ),
    "Mistral-7B-v0.3": (
        dense(
            "MistralForCausalLM",
            4096,
            14336,
            32,
            32,
            8,
            max_position_embeddings=32768,
            vocab_size=32768,
        )
        | {"rope_theta": 1e6, "sliding_window": None, "eos_token_id": 2},
        Facts(32768, (2,), (32, 8, 128), 1e6, 128, [(None, 32)]),
    ),
    "Mixtral-8x7B": (
        dense(
            "MixtralForCausalLM",
            4096,
            14336,
            32,
            32,
            8,
            max_position_embeddings=32768,
            vocab_size=32000,
        )
        | {
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "rope_theta": 1e6,
            "sliding_window": None,
        }
        | {"eos_token_id": 2},
        Facts(32768, (2,), (32, 8, 128), 1e6, 128, [(None, 32)]),
    ),
    "Qwen2.5-0.5B": (
        dense(
            "Qwen2ForCausalLM",
            896,
            4864,
            24,
            14,
            2,
            max_position_embeddings=32768,
            vocab_size=151936,
        )
        | QWEN
        | {"sliding_window": 32768, "use_mrope": False, "eos_token_id": 151643},
        Facts(32768, (151643,), (14, 2, 64), 1e6, 64, [(None, 24)], tied=True),
    ),
    "Qwen3-0.6B": (
        dense(
            "Qwen3ForCausalLM",
            1024,
            3072,
            28,
            16,
            8,
            max_position_embeddings=40960,
            vocab_size=151936,
        )
        | QWEN
        | {"head_dim": 128, "sliding_window": None, "rope_theta": 1000000, "eos_token_id": 151645},
        Facts(40960, (151645,), (16, 8, 128), 1e6, 128, [(None, 28)], tied=True),
    ),
    "Qwen3-30B-A3B": (
        dense(
            "Qwen3MoeForCausalLM",
            2048,
            6144,
            48,
            32,
            4,
            max_position_embeddings=40960,
            vocab_size=151936,
        )
        | {
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        }
        | {
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
            "rope_theta": 1e6,
        }
        | {"sliding_window": None, "use_sliding_window": False, "eos_token_id": 151645},
        Facts(40960, (151645,), (32, 4, 128), 1e6, 128, [(None, 48)]),
    ),
    "gemma-2-2b": (
        dense(
            "Gemma2ForCausalLM",
            2304,
            9216,
            26,
            8,
            4,
            max_position_embeddings=8192,
            vocab_size=256000,
        )
        | GEMMA
        | {
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "sliding_window": 4096,
            "eos_token_id": 1,
        },
        Facts(8192, (1,), (8, 4, 256), 1e4, 256, [(4096, 1), (None, 1)], tied=True),
    ),
    "gemma-3-1b-it": (
        dense(
            "Gemma3ForCausalLM",
            1152,
            6912,
            26,
            4,
            1,
            max_position_embeddings=32768,
            vocab_size=262144,
        )
        | GEMMA
        | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "sliding_window": 512}
        | {
            "sliding_window_pattern": 6,
            "rope_local_base_freq": 10000,
            "rope_theta": 1000000,
            "eos_token_id": [1, 106],
        },
        Facts(32768, (1, 106), (4, 1, 256), 1e4, 256, [(512, 5), (None, 1)], tied=True),
    ),
    "Phi-3-mini-4k-instruct": (
        dense("Phi3ForCausalLM", 3072, 8192, 32, 32, 32, max_position_embeddings=4096)
        | PHI
        | {"auto_map": PHI_CODE, "sliding_window": 2047},
        Facts(4096, (32000,), (32, 32, 96), 1e4, 96, [(2047, 32)]),
    ),
    "Phi-3-mini-128k-instruct": (
        dense("Phi3ForCausalLM", 3072, 8192, 32, 32, 32, max_position_embeddings=131072)
        | PHI
        | {"auto_map": PHI_CODE, "rope_scaling": LONG, "sliding_window": 262144},
        Facts(131072, (32000,), (32, 32, 96), 1e4, 96, [(262144, 32)]),
    ),
    "OLMo-2-1124-7B": (
        dense(
            "Olmo2ForCausalLM",
            4096,
            11008,
            32,
            32,
            32,
            max_position_embeddings=4096,
            vocab_size=100352,
        )
        | {"rope_theta": 500000, "eos_token_id": 100257, "attention_bias": False},
        Facts(4096, (100257,), (32, 32, 128), 5e5, 128, [(None, 32)]),
    ),
    "gpt2": (
        {
            "activation_function": "gelu_new",
            "architectures": ["GPT2LMHeadModel"],
            "eos_token_id": 50256,
            "layer_norm_epsilon": 1e-05,
            "n_ctx": 1024,
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
            "vocab_size": 50257,
        },
        Facts(1024, (50256,), (12, 12, 64), None, None, [(None, 12)], tied=True),
    ),
    "pythia-70m": (
        {
            "architectures": ["GPTNeoXForCausalLM"],
            "eos_token_id": 0,
            "hidden_act": "gelu",
            "hidden_size": 512,
            "intermediate_size": 2048,
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048,
            "num_attention_heads": 8,
            "num_hidden_layers": 6,
            "rotary_emb_base": 10000,
            "rotary_pct": 0.25,
            "tie_word_embeddings": False,
            "use_parallel_residual": True,
            "vocab_size": 50304,
        },
        Facts(2048, (0,), (8, 8, 64), 1e4, 16, [(None, 6)]),
    ),
}


def spec_of_published(
    config: dict[str, Any], folder: Path, registry: Registry
) -> tuple[Any, DecoderSpec]:
    (folder / "config.json").write_text(json.dumps(config))
    settings = EngineConfig(ModelConfig(str(folder)))
    source = registry.find_model(str(folder), settings)
    assert source is not None
    spec, _ = read_model(settings, source, registry)
    assert isinstance(spec, DecoderSpec)
    return source, spec


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_config_is_read(name: str, tmp_path: Path, registry: Registry) -> None:
    config, expected = PUBLISHED[name]
    source, spec = spec_of_published(config, tmp_path, registry)
    attention = spec.layers[0].attention
    found = Facts(
        context=source.max_model_len,
        eos=source.eos_token_ids,
        heads=(attention.heads, attention.kv_heads, attention.head_size),
        theta=attention.rope.theta if attention.rope else None,
        rotary_size=attention.rope.size if attention.rope else None,
        windows=[
            (size, len(list(run))) for size, run in groupby(x.attention.window for x in spec.layers)
        ][:2],
        tied=spec.tied_head,
    )
    assert found == expected


def test_published_configs_rope_scaling_and_experts(tmp_path: Path, registry: Registry) -> None:
    def spec(name: str) -> DecoderSpec:
        return spec_of_published(PUBLISHED[name][0], tmp_path, registry)[1]

    llama = spec("Llama-3.1-8B-Instruct")
    phi = spec("Phi-3-mini-128k-instruct")
    qwen = spec("Qwen3-30B-A3B")
    assert llama.layers[0].attention.rope is not None
    assert llama.layers[0].attention.rope.scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    assert phi.layers[0].attention.rope is not None
    scaling = phi.layers[0].attention.rope.scaling
    assert isinstance(scaling, LongScaling)
    assert (scaling.original, round(scaling.long_attention_factor, 4)) == (4096, 1.1902)
    assert qwen.layers[0].mlp == MoeSpec(experts=128, top_k=8, width=768)
    assert (
        spec("gemma-3-1b-it").layers[5].attention.rope
        != spec("gemma-3-1b-it").layers[0].attention.rope
    )
