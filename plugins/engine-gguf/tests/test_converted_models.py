"""Architectures with transformed tensors: a file matches the checkpoint that it was made from."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conversions import Conversion
from engine_gguf.files import read_headers
from engine_gguf.loader import GgufLoader
from engine_gguf.settings import Settings
from engine_gguf.source import find
from test_models import assert_close, logprobs

from core import LLM
from core.api import ModelError
from core.config.build import config_from_kwargs
from core.testing.checkpoints import make_checkpoint

NO_LIMIT = {"time_step_limit": [0.0, float("inf")]}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [1.0 + i for i in range(8)],
    "short_mscale": 1.0,
    "long_mscale": 1.0,
    "original_max_position_embeddings": 512,
}
LLAMA4 = {
    "moe_layers": None,
    "no_rope_layers": None,
    "num_hidden_layers": 4,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 8192,
    "floor_scale": 8192,
    "attn_scale": 0.1,
}
QUICK: list[tuple[str, dict[str, Any]]] = [
    ("GraniteMoeSharedForCausalLM", {}),
    ("Qwen3_5MoeForCausalLM", {"linear_value_head_dim": 32}),
]
SLOW: list[tuple[str, dict[str, Any]]] = [
    ("BambaForCausalLM", {**NO_LIMIT, "mlp_bias": False}),
    ("BloomForCausalLM", {"hidden_size": 64, "n_head": 4}),
    ("FalconForCausalLM", {"ffn_hidden_size": 256, "bias": False}),
    (
        "FalconForCausalLM",
        {
            "ffn_hidden_size": 256,
            "bias": False,
            "num_kv_heads": 1,
            "new_decoder_architecture": False,
            "parallel_attn": True,
        },
    ),
    (
        "FalconH1ForCausalLM",
        {
            **NO_LIMIT,
            "mamba_proj_bias": False,
            "projectors_bias": False,
            "attention_bias": False,
            "mlp_bias": False,
        },
    ),
    ("FalconMambaForCausalLM", {"intermediate_size": 128, "mixer_rms_eps": 1e-6}),
    ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": False}),
    ("GPTBigCodeForCausalLM", {}),
    ("GPTNeoXForCausalLM", {}),
    ("Gemma4ForCausalLM", {}),
    ("GraniteMoeForCausalLM", {}),
    ("GraniteMoeHybridForCausalLM", {**NO_LIMIT, "position_embedding_type": "nope"}),
    ("JambaForCausalLM", {}),
    ("Lfm2ForCausalLM", {"conv_bias": False, "block_auto_adjust_ff_dim": False}),
    ("Lfm2MoeForCausalLM", {"conv_bias": False, "routed_scaling_factor": 1.0}),
    ("Llama4ForCausalLM", LLAMA4),
    ("Mamba2ForCausalLM", {**NO_LIMIT, "intermediate_size": 128}),
    ("MambaForCausalLM", {"intermediate_size": 128}),
    (
        "MiniCPM3ForCausalLM",
        {
            "attention_bias": False,
            "mlp_bias": False,
            "v_head_dim": 16,
            "scale_emb": 12,
            "scale_depth": 1.4,
            "dim_model_base": 256,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    ("MptForCausalLM", {"attn_config": {"clip_qkv": 1.0}, "d_model": 64, "n_heads": 4}),
    ("NemotronForCausalLM", {"head_dim": 16}),
    ("NemotronHForCausalLM", {}),
    ("PhiForCausalLM", {"qk_layernorm": False, "intermediate_size": 256, "num_key_value_heads": 4}),
    ("PhimoeForCausalLM", {"rope_parameters": LONG, "router_jitter_noise": 0.01}),
    ("Qwen3NextForCausalLM", {"mlp_only_layers": [], "norm_topk_prob": True}),
    ("Qwen3_5ForCausalLM", {}),
]


def made(architecture: str, folder: Path, **overrides: Any) -> tuple[Path, Path, Conversion]:
    """Return a file, the checkpoint that it must match, and its conversion."""
    checkpoint = make_checkpoint(architecture, folder / "checkpoint", seed=1, **overrides)
    conversion = Conversion(checkpoint)
    return conversion.convert(folder / "model.gguf"), checkpoint, conversion


def check(architecture: str, folder: Path, overrides: dict[str, Any]) -> None:
    file, checkpoint, conversion = made(architecture, folder, **overrides)
    assert "Q8_0" in conversion.kinds.values()
    assert_close(logprobs(file), logprobs(checkpoint))


@pytest.mark.parametrize(("architecture", "overrides"), QUICK, ids=str)
def test_file_matches_its_checkpoint(
    architecture: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    check(architecture, tmp_path, overrides)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "overrides"), SLOW, ids=str)
def test_slow_architectures_match_their_checkpoints(
    architecture: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    check(architecture, tmp_path, overrides)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "architecture", "overrides"),
    [
        (
            "mistral3",
            "LlamaForCausalLM",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        ),
        (
            "qwen2vl",
            "Qwen2ForCausalLM",
            {"use_sliding_window": False, "sliding_window": None, "layer_types": None},
        ),
        ("qwen3vl", "Qwen3ForCausalLM", {}),
        ("qwen3vlmoe", "Qwen3MoeForCausalLM", {"mlp_only_layers": []}),
    ],
)
def test_vision_models_are_served_for_text(
    arch: str, architecture: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    folder = make_checkpoint(architecture, tmp_path / "checkpoint", seed=1, **overrides)
    file = Conversion(folder, arch).convert(
        tmp_path / "model.gguf", **{"rope.dimension_sections": [4, 2, 2, 0]}
    )
    assert_close(logprobs(file), logprobs(folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", ["GraniteMoeHybridForCausalLM", "Qwen3_5MoeForCausalLM", "Lfm2MoeForCausalLM"]
)
def test_tp2_matches_tp1(architecture: str, tmp_path: Path) -> None:
    overrides = dict([*QUICK, *SLOW])[architecture]
    wide = {"moe_intermediate_size": 64, "intermediate_size": 128}
    wide |= {"head_dim": 32} if "Qwen" in architecture else {}
    file, _, _ = made(architecture, tmp_path, **{**overrides, **wide})
    assert_close(logprobs(file, tensor_parallel_size=2), logprobs(file))


@pytest.mark.parametrize("architecture", ["GraniteMoeForCausalLM", "Qwen3NextForCausalLM"])
def test_stacked_experts_and_fused_rows_stay_in_blocks(architecture: str, tmp_path: Path) -> None:
    file, _, _ = made(architecture, tmp_path, **dict(SLOW)[architecture])
    config: Any = config_from_kwargs({"model": str(file)})
    facts = find(str(file), config).hf_config.quantization_config
    assert len(facts["experts"]) == 3
    assert all(
        own == {"gate": "Q8_0", "up": "Q8_0", "down": "Q8_0"} for own in facts["experts"].values()
    )
    joined = [name for name in facts["blocks"] if name.endswith("in_proj_qkvz")]
    assert len(joined) == (2 if "Next" in architecture else 0)


ENCODERS: list[tuple[str, dict[str, Any], int]] = [
    ("BertModel", {}, 1),
    ("NomicBertModel", {}, 1),
    ("BertModel", {}, 2),
    ("RobertaModel", {}, 2),
    ("ModernBertModel", {"num_hidden_layers": 4, "layer_types": None}, 1),
    ("EuroBertModel", {}, 3),
    ("Qwen3ForCausalLM", {}, 3),
    ("Qwen3ForCausalLM", {"tie_word_embeddings": False}, 1),
]


def embedded(model: Path, **settings: Any) -> torch.Tensor:
    """Return the embeddings of some prompts."""
    prompts = [[5, 9, 17, 33], [200, 100, 7], [3] * 30]
    with LLM(
        str(model), dtype="float32", log_level="error", num_threads=1, max_model_len=64, **settings
    ) as llm:
        return torch.tensor(
            [output.outputs.embedding for output in llm.embed(prompts, use_tqdm=False)]
        )


@pytest.mark.parametrize(("architecture", "overrides", "pooling"), ENCODERS[:2], ids=str)
def test_encoder_pooling_follows_the_file(
    architecture: str, overrides: dict[str, Any], pooling: int, tmp_path: Path
) -> None:
    folder = make_checkpoint(architecture, tmp_path / "checkpoint", seed=1, **overrides)
    file = Conversion(folder).convert(tmp_path / "model.gguf", pooling_type=pooling)
    kind = {1: "MEAN", 2: "CLS", 3: "LAST"}[pooling]
    expected = embedded(
        folder, runner="pooling", pooler_config={"pooling_type": kind, "normalize": True}
    )
    assert torch.nn.functional.cosine_similarity(embedded(file), expected).min() > 0.9999


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "overrides", "pooling"), ENCODERS[2:], ids=str)
def test_slow_encoders_pooling_follows_the_file(
    architecture: str, overrides: dict[str, Any], pooling: int, tmp_path: Path
) -> None:
    test_encoder_pooling_follows_the_file(architecture, overrides, pooling, tmp_path)


FUZZED: list[Any] = [
    0,
    -1,
    1,
    2**31,
    2**60,
    "wide",
    float("nan"),
    True,
    None,
    np.zeros(0, np.int32),
    np.full(2, -5, np.int32),
]


@pytest.mark.parametrize(
    "architecture",
    [
        "Gemma4ForCausalLM",
        *(
            pytest.param(f"{name}ForCausalLM", marks=pytest.mark.slow)
            for name in ("Qwen3_5Moe", "NemotronH")
        ),
    ],
)
def test_fuzzed_settings_are_read_or_rejected(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _, _ = made(architecture, tmp_path, **dict([*QUICK, *SLOW])[architecture])
    config: Any = config_from_kwargs({"model": str(file), "skip_tokenizer_init": True})
    own = Settings.own
    name = Settings(read_headers(file)[0]).architecture
    stated = [
        key.removeprefix(f"{name}.")
        for key in read_headers(file)[0].settings
        if key.startswith(f"{name}.")
    ]
    refused = 0
    for key in stated:
        for value in FUZZED:
            monkeypatch.setattr(
                Settings,
                "own",
                lambda self, setting, k=key, v=value: v if setting == k else own(self, setting),
            )
            with suppress(ModelError):
                list(GgufLoader(find(str(file), config), config).headers())
                continue
            refused += 1
    assert refused > len(stated)
