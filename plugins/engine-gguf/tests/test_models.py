"""Files of several architectures and types match their dequantized weights in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams
from core.api import ModelError
from core.testing.checkpoints import VOCAB

MIXED = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q6_K", "": "Q4_K"}
"""The types of Q4_K_M files."""
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 128,
}
SETTINGS: dict[str, Any] = {
    "max_model_len": 96,
    "kv_cache_memory_bytes": 1 << 24,
    "log_level": "error",
    "num_threads": 1,
    "enable_prefix_caching": False,
}
NO_WINDOW = {"use_sliding_window": False, "sliding_window": None, "layer_types": None}
PROMPTS = [[(7 * n + 3 * start) % (VOCAB - 3) for n in range(40)] for start in range(3)]
Made = Callable[..., tuple[Path, Path]]


def logprobs(model: Path, **settings: Any) -> torch.Tensor:
    """Return all log-probabilities at each prompt position, and of the next token."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=-1, logprobs=-1)
    rows = []
    with LLM(str(model), **{**SETTINGS, "dtype": "float32", "max_logprobs": -1, **settings}) as llm:
        for output in llm.generate(PROMPTS, params, use_tqdm=False):
            entries = [entry for entry in output.prompt_logprobs or [] if entry] + list(
                output.outputs[0].logprobs or []
            )
            rows += [[entry[token].logprob for token in range(VOCAB)] for entry in entries]
    return torch.tensor(rows)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert the bound of quantized weights."""
    own, other = (each - each.mean(1, keepdim=True) for each in (found, expected))
    assert torch.nn.functional.cosine_similarity(own, other).min() >= 0.9999
    assert (found.argmax(1) == expected.argmax(1)).float().mean() >= 0.99


@pytest.mark.parametrize(
    ("architecture", "kinds", "overrides"),
    [
        ("LlamaForCausalLM", MIXED, {}),
        ("LlamaForCausalLM", "Q8_0", {"tie_word_embeddings": True}),
        ("Qwen3ForCausalLM", "Q4_0", {}),
        ("Qwen3MoeForCausalLM", MIXED, {"moe_intermediate_size": 256, "mlp_only_layers": []}),
        (
            "Gemma3ForCausalLM",
            MIXED,
            {"layer_types": None, "num_hidden_layers": 6, "query_pre_attn_scalar": 64},
        ),
        ("MixtralForCausalLM", MIXED, {"sliding_window": None}),
        ("DeepseekV3ForCausalLM", "Q8_0", {"attention_bias": False, "rope_parameters": YARN}),
    ],
    ids=str,
)
def test_file_matches_dequantized_weights(
    architecture: str, kinds: Any, overrides: dict[str, Any], made: Made
) -> None:
    file, plain = made(architecture, kinds, **overrides)
    assert_close(logprobs(file), logprobs(plain))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("Qwen2ForCausalLM", NO_WINDOW),
        ("Gemma2ForCausalLM", {"layer_types": None, "query_pre_attn_scalar": 64}),
        ("Phi3ForCausalLM", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
        ("GptOssForCausalLM", {"layer_types": None, "num_hidden_layers": 2}),
        ("MistralForCausalLM", {}),
        ("Qwen2MoeForCausalLM", NO_WINDOW | {"mlp_only_layers": [], "norm_topk_prob": False}),
        ("AfmoeForCausalLM", {"num_hidden_layers": 3}),
        ("ArceeForCausalLM", {}),
        (
            "Cohere2ForCausalLM",
            {"num_hidden_layers": 4, "layer_types": None, "tie_word_embeddings": True},
        ),
        ("CohereForCausalLM", {"tie_word_embeddings": True}),
        ("Dots1ForCausalLM", {"layer_types": None, "sliding_window": None}),
        ("Ernie4_5ForCausalLM", {}),
        ("Ernie4_5_MoeForCausalLM", {}),
        ("Exaone4ForCausalLM", {"num_hidden_layers": 3}),
        ("Glm4ForCausalLM", {}),
        ("Glm4MoeForCausalLM", {}),
        ("GraniteForCausalLM", {}),
        (
            "HunYuanDenseV1ForCausalLM",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        ),
        ("HunYuanMoEV1ForCausalLM", {}),
        ("MiniMaxM2ForCausalLM", {}),
        ("OlmoForCausalLM", {}),
        ("Olmo2ForCausalLM", {}),
        ("Olmo3ForCausalLM", {"num_hidden_layers": 3}),
        ("OlmoeForCausalLM", {"norm_topk_prob": False}),
        ("SeedOssForCausalLM", {}),
        ("SmolLM3ForCausalLM", NO_WINDOW | {"num_hidden_layers": 4, "no_rope_layers": None}),
        ("StableLmForCausalLM", {"qk_layernorm": False}),
        ("Starcoder2ForCausalLM", {}),
        ("YoutuForCausalLM", {}),
    ],
    ids=str,
)
def test_architecture_matches_dequantized_weights(
    architecture: str, overrides: dict[str, Any], made: Made
) -> None:
    file, plain = made(architecture, "Q8_0", **overrides)
    assert_close(logprobs(file), logprobs(plain))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "F32",
        "F16",
        "BF16",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q2_K",
        "Q3_K",
        "Q5_K",
        "IQ4_NL",
        "IQ4_XS",
        "IQ2_XXS",
        "IQ3_S",
        "TQ2_0",
        "MXFP4",
    ],
)
def test_every_tensor_type_is_read(kind: str, made: Made) -> None:
    file, plain = made("LlamaForCausalLM", kind)
    assert_close(logprobs(file), logprobs(plain))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("LlamaForCausalLM", {"num_attention_heads": 8}),
        (
            "Qwen3MoeForCausalLM",
            {"num_attention_heads": 8, "moe_intermediate_size": 512, "mlp_only_layers": []},
        ),
        (
            "Gemma3ForCausalLM",
            {"num_attention_heads": 8, "layer_types": None, "query_pre_attn_scalar": 64},
        ),
        ("MixtralForCausalLM", {"num_attention_heads": 8, "sliding_window": None}),
        ("DeepseekV3ForCausalLM", {"moe_intermediate_size": 64, "rope_parameters": YARN}),
    ],
    ids=str,
)
def test_tp2_matches_tp1(architecture: str, overrides: dict[str, Any], made: Made) -> None:
    file, _ = made(architecture, "Q8_0" if "Deepseek" in architecture else MIXED, **overrides)
    assert_close(logprobs(file, tensor_parallel_size=2), logprobs(file))


@pytest.mark.slow
def test_shards_that_cut_expert_blocks_are_rejected(made: Made) -> None:
    overrides = {"num_attention_heads": 8, "moe_intermediate_size": 256, "mlp_only_layers": []}
    file, _ = made("Qwen3MoeForCausalLM", MIXED, **overrides)
    with pytest.raises(
        ModelError, match=r"each expert's down has 256 columns in blocks of 256, .* to one of 1"
    ):
        logprobs(file, tensor_parallel_size=2)


@pytest.mark.slow
def test_shards_that_cut_blocks_are_rejected(made: Made, capfd: pytest.CaptureFixture[str]) -> None:
    file, _ = made("LlamaForCausalLM", MIXED)
    with pytest.raises(
        ModelError, match=r"256 columns in blocks of 256, .* Set --tensor-parallel-size to one of 1"
    ):
        logprobs(file, tensor_parallel_size=2)
    assert "Traceback" not in capfd.readouterr().err  # threads of features end with the rank
