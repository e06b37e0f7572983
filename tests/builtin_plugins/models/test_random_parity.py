"""Random shapes and options of every architecture against transformers, saved by transformers.

Covers shards, half precision, missing tokenizers, odd vocabularies and head sizes, and one to five
layers.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from core import LLM, SamplingParams
from core.testing.checkpoints import TINY

NUM_SEEDS = 12
NUM_GENERATED = 8
TOLERANCE = 1e-3
GAP = 1e-3
CONTEXT = 200
WAYS: dict[str, dict[str, Any]] = {
    "all at once": {},
    "a budget of 16 tokens": {"max_num_batched_tokens": 16},
    "blocks of 4": {"block_size": 4},
}


def draw_rope(draw: random.Random) -> dict[str, Any]:
    theta = draw.choice([500.0, 10000.0, 1e6])
    kinds: list[dict[str, Any]] = [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {"original_max_position_embeddings": 32},
    ]
    return {"rope_parameters": {**draw.choice(kinds), "rope_theta": theta}}


def draw_shape(draw: random.Random, *, own_head_size: bool) -> dict[str, Any]:
    heads = draw.choice([2, 3, 4, 6])
    size = draw.choice([8, 16, 20, 32])
    return {
        "vocab_size": draw.choice([64, 307, 513]),
        "hidden_size": heads * (draw.choice([8, 12]) if own_head_size else size),
        "intermediate_size": draw.choice([56, 97]),
        "num_hidden_layers": draw.choice([1, 2, 5]),
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([n for n in (1, 2, 3, heads) if heads % n == 0]),
        "max_position_embeddings": 256,
        "tie_word_embeddings": draw.random() < 0.5,
        "rms_norm_eps": draw.choice([1e-6, 1e-3]),
        "pad_token_id": None,
        **({"head_dim": size} if own_head_size else {}),
    }


def draw_windows(draw: random.Random, num_layers: int) -> dict[str, Any]:
    kinds = [draw.choice(["full_attention", "sliding_attention"]) for _ in range(num_layers)]
    return {
        "use_sliding_window": draw.random() < 0.7,
        "sliding_window": draw.choice([8, 24]),
        "max_window_layers": draw.choice([0, 1]),
        **({"layer_types": kinds, "use_sliding_window": True} if draw.random() < 0.4 else {}),
    }


def draw_options(architecture: str, draw: random.Random) -> dict[str, Any]:
    """Return the fields of a random config."""
    if architecture == "GPT2LMHeadModel":
        heads = draw.choice([2, 3])
        return {
            "vocab_size": 307,
            "n_embd": heads * 20,
            "n_layer": draw.choice([1, 5]),
            "n_head": heads,
        } | {
            "n_positions": 256,
            "n_inner": draw.choice([None, 50]),
            "scale_attn_weights": draw.random() < 0.7,
            "scale_attn_by_inverse_layer_idx": draw.random() < 0.4,
            "tie_word_embeddings": draw.random() < 0.7,
            "activation_function": draw.choice(["gelu_new", "relu"]),
        }
    own = architecture not in ("Phi3ForCausalLM", "Olmo2ForCausalLM", "GPTNeoXForCausalLM")
    config = draw_shape(draw, own_head_size=own)
    layers = config["num_hidden_layers"]
    biased = {"attention_bias": draw.random() < 0.5}
    experts = {"num_experts_per_tok": draw.choice([1, 2])}
    gemma = {"query_pre_attn_scalar": draw.choice([16, 100]), "sliding_window": 8}
    gemma |= {"final_logit_softcapping": draw.choice([None, 5.0]), "attn_logit_softcapping": None}
    own_options: dict[str, dict[str, Any]] = {
        "LlamaForCausalLM": {**draw_rope(draw), **biased, "mlp_bias": draw.random() < 0.5},
        "MistralForCausalLM": {**draw_rope(draw), "sliding_window": draw.choice([8, None])},
        "Qwen2ForCausalLM": {**draw_rope(draw), **draw_windows(draw, layers)},
        "Qwen3ForCausalLM": {**draw_rope(draw), **biased, **draw_windows(draw, layers)},
        "Gemma2ForCausalLM": {**draw_rope(draw), **biased, **gemma},
        "Gemma3ForCausalLM": {**biased, **gemma, "sliding_window_pattern": draw.choice([2, 3])},
        "Phi3ForCausalLM": {"sliding_window": draw.choice([8, None])},
        "Olmo2ForCausalLM": {**draw_rope(draw), **biased},
        "GPTNeoXForCausalLM": {
            **biased,
            "use_parallel_residual": draw.random() < 0.5,
            "rotary_pct": draw.choice([0.25, 1.0]) if config["hidden_size"] % 16 == 0 else 1.0,
        },
        "MixtralForCausalLM": {
            **draw_rope(draw),
            **experts,
            "num_local_experts": draw.choice([2, 5]),
        },
        "Qwen3MoeForCausalLM": {**draw_rope(draw), **experts, "num_experts": draw.choice([4, 7])}
        | {"moe_intermediate_size": 24, "norm_topk_prob": draw.random() < 0.5}
        | {"decoder_sparse_step": draw.choice([1, 2]), "mlp_only_layers": draw.choice([[], [0]])},
    }
    return {**config, **own_options[architecture]}


def save_random(architecture: str, draw: random.Random, folder: Path) -> Any:
    """Save a random model as transformers does; return it as it was stored, in float32."""
    config_class = getattr(transformers, TINY[architecture][0])
    make = getattr(transformers, architecture)
    model = make(config_class(**draw_options(architecture, draw), bos_token_id=1, eos_token_id=2))
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    spread = draw.choice([0.1, 0.2, 0.3])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * spread
            parameter.copy_(
                noise + (1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0)
            )
    model.generation_config.eos_token_id = [2, 3]
    stored = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    model.to(stored).save_pretrained(folder, max_shard_size=draw.choice(["50MB", "20KB"]))
    # transformers' grouped products of experts take aligned sizes only.
    plain = {
        "attn_implementation": "eager",
        "experts_implementation": "eager",
        "dtype": torch.float32,
    }
    return make.from_pretrained(folder, **plain).eval()


@torch.inference_mode()
def expect(model: Any, prompt: list[int]) -> tuple[list[int], list[float], float]:
    """Return greedy tokens, their log-probabilities, and the least gap between the two best on the
    way.
    """
    tokens = list(prompt)
    scores = []
    gaps = []
    for _ in range(NUM_GENERATED):
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
        best = logits.topk(2)
        gaps.append(float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
        scores.append(float(logits.log_softmax(-1)[tokens[-1]]))
    return tokens[len(prompt) :], scores, min(gaps)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_SEEDS))
@pytest.mark.parametrize("architecture", sorted(TINY))
def test_random_configs_equal_transformers(architecture: str, seed: int, tmp_path: Path) -> None:
    draw = random.Random(f"{architecture} {seed}")
    model = save_random(architecture, draw, tmp_path)
    prompts = [
        [draw.randrange(model.config.vocab_size) for _ in range(length)]
        for length in (3, 30, 61, 90)
    ]
    cases = [(prompt, *expect(model, prompt)) for prompt in prompts]
    cases = [case for case in cases if case[3] >= GAP]
    params = SamplingParams(temperature=0, max_tokens=NUM_GENERATED, ignore_eos=True, logprobs=0)
    settings: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": CONTEXT,
        "kv_cache_memory_bytes": 1 << 24,
    }
    for way, changes in WAYS.items():
        with LLM(str(tmp_path), num_threads=1, log_level="error", **(settings | changes)) as llm:
            for _ in range(2):  # the second time the prefix cache is warm
                outputs = llm.generate([case[0] for case in cases], params, use_tqdm=False)
                for output, (prompt, tokens, scores, _) in zip(outputs, cases, strict=True):
                    completion = output.outputs[0]
                    assert list(completion.token_ids) == tokens, f"{way}, prompt of {len(prompt)}"
                    assert completion.logprobs is not None
                    found = [
                        logprobs[token].logprob
                        for logprobs, token in zip(completion.logprobs, tokens, strict=True)
                    ]
                    assert found == pytest.approx(scores, abs=TOLERANCE), (
                        f"{way}, prompt of {len(prompt)}"
                    )
