"""Every architecture against transformers: float32, tiny random weights, every option on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from builtin_plugins.quant_methods.mxfp4.experts import Mxfp4
from core.errors import ModelError
from core.testing.checkpoints import ARCHITECTURES, TINY, VOCAB, make_checkpoint
from core.testing.no_readback import no_readback
from core.testing.one_sequence import Session
from core.testing.published.catalog import PUBLISHED
from core.testing.tiny_encoder_decoders import DECODERS_ALONE

PROMPT_LEN = 56
"""Longer than every window and chunk."""
NUM_GENERATED = 4
TOLERANCE = 1e-3
HERE = [
    *sorted(set(ARCHITECTURES) - set(TINY)),
    *(pytest.param(name, marks=pytest.mark.slow) for name in (*PUBLISHED, *DECODERS_ALONE)),
]
"""Those of `TINY` have tests of their own; those of `PUBLISHED` run fast through the engine."""


def prompt(seed: int) -> list[int]:
    return torch.randint(
        0, VOCAB - 3, (PROMPT_LEN,), generator=torch.Generator().manual_seed(seed)
    ).tolist()


@torch.inference_mode()
def oracle(model: Any) -> tuple[list[int], list[int], torch.Tensor]:
    """Return a prompt without near ties, transformers' greedy tokens and all log-probabilities."""
    for seed in range(20):
        tokens = prompt(seed)
        for _ in range(NUM_GENERATED):
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
            tokens.append(int(logits[-1].argmax()))
        top = logits[PROMPT_LEN - 1 :].topk(2).values
        if (top[:, 0] - top[:, 1]).min() > 2 * TOLERANCE:
            return tokens[:PROMPT_LEN], tokens[PROMPT_LEN:], logits.float().log_softmax(-1)
    raise AssertionError("no prompt without a tie was found")


@pytest.mark.parametrize("architecture", HERE)
def test_tokens_and_logprobs_equal_transformers(
    architecture: str,
    checkpoint: Callable[[str], Path],
    load: Callable[..., Any],
    by_transformers: Callable[[Path], Any],
) -> None:
    folder = checkpoint(architecture)
    ids, expected_tokens, expected = oracle(by_transformers(folder))
    decoder = load(architecture, folder)
    for chunk in (PROMPT_LEN, 9):
        tokens, found = Session(decoder).generate(ids, NUM_GENERATED, chunk)
        assert (found[: len(expected)] - expected).abs().max() < TOLERANCE, f"in chunks of {chunk}"
        assert tokens == expected_tokens, f"in chunks of {chunk}"


@pytest.mark.parametrize("architecture", HERE)
def test_early_tokens_move_the_last_logits(
    architecture: str, checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    decoder = load(architecture, checkpoint(architecture))
    ids = prompt(0)
    swapped = [*ids[:10], ids[11], ids[10], *ids[12:]]
    last = [Session(decoder).step(tokens)[-1] for tokens in (ids, swapped)]
    assert (last[0] - last[1]).abs().max() > 1e-2


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("architecture", HERE)
def test_half_precision_is_near_float32_without_host_sync(
    architecture: str,
    dtype: torch.dtype,
    checkpoint: Callable[[str], Path],
    load: Callable[..., Any],
) -> None:
    folder = checkpoint(architecture)
    ids = prompt(0)
    exact = Session(load(architecture, folder)).step(ids)
    session = Session(load(architecture, folder, dtype))
    with no_readback():
        rounded = session.step(ids)
    assert rounded.dtype == torch.float32
    assert (exact - rounded).abs().mean() < (0.5 if dtype == torch.bfloat16 else 0.08)


FALCON_ALIBI = {"new_decoder_architecture": False, "alibi": True, "parallel_attn": False}
OTHER_FORMS: list[tuple[str, dict[str, Any]]] = [
    ("FalconForCausalLM", {**FALCON_ALIBI, "multi_query": False, "num_kv_heads": None}),
    ("FalconForCausalLM", {"new_decoder_architecture": False, "num_kv_heads": None}),
    ("FalconForCausalLM", {"num_ln_in_parallel_attn": 1, "bias": False}),
    (
        "OPTForCausalLM",
        {"do_layer_norm_before": True, "word_embed_proj_dim": 64, "enable_bias": False},
    ),
    ("OPTForCausalLM", {"do_layer_norm_before": True, "layer_norm_elementwise_affine": False}),
    ("GPTBigCodeForCausalLM", {"multi_query": False, "scale_attn_weights": False}),
    (
        "StableLmForCausalLM",
        {"qk_layernorm": False, "use_parallel_residual": False, "use_qkv_bias": False},
    ),
    ("CohereForCausalLM", {"use_qk_norm": False, "attention_bias": False}),
    ("Exaone4ForCausalLM", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    ("HyperCLOVAXForCausalLM", {"use_post_norm": False, "attention_multiplier": None}),
    ("GemmaForCausalLM", {"hidden_act": "gelu"}),
    ("OlmoeForCausalLM", {"norm_topk_prob": True, "clip_qkv": None}),
    (
        "Qwen2MoeForCausalLM",
        {"norm_topk_prob": True, "decoder_sparse_step": 2, "mlp_only_layers": []},
    ),
    ("Qwen2MoeForCausalLM", {"layer_types": None, "max_window_layers": 2}),
    (
        "Glm4MoeForCausalLM",
        {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "use_qk_norm": False},
    ),
    (
        "Ernie4_5_MoeForCausalLM",
        {"moe_num_shared_experts": 0, "moe_layer_interval": 2, "use_bias": False},
    ),
    ("GraniteMoeSharedForCausalLM", {"shared_intermediate_size": 0}),
    (
        "Llama4ForCausalLM",
        {"use_qk_norm": False, "attn_temperature_tuning": False, "num_experts_per_tok": 1},
    ),
    (
        "Llama4ForCausalLM",
        {"no_rope_layers": None, "moe_layers": None, "interleave_moe_layer_step": 2},
    ),
    (
        "Llama4ForCausalLM",
        {"layer_types": ["full_attention", "chunked_attention", "chunked_attention"]},
    ),
    ("DeepseekV2ForCausalLM", {"mlp_bias": True, "q_lora_rank": None}),
    ("DbrxForCausalLM", {"attn_config": {"kv_n_heads": 4, "rope_theta": 5000.0, "clip_qkv": 9.0}}),
    (
        "Zamba2ForCausalLM",
        {
            "num_mem_blocks": 2,
            "num_hidden_layers": 4,
            "layers_block_type": ["hybrid", "hybrid", "mamba", "hybrid"],
        },
    ),
    (
        "Zamba2ForCausalLM",
        {"use_mem_rope": False, "use_shared_attention_adapter": False, "add_bias_linear": False},
    ),
    (
        "SmolLM3ForCausalLM",
        {"no_rope_layers": None, "no_rope_layer_interval": 3, "use_sliding_window": False},
    ),
    ("BloomForCausalLM", {"apply_residual_connection_post_layernorm": True}),
    ("DeepseekV4ForCausalLM", {"mlp_bias": True}),
    ("GptOssForCausalLM", {"swiglu_alpha": 1.3, "swiglu_limit": 0.5}),
    *(
        ("NemotronHForCausalLM", {"mlp_hidden_act": activation})
        for activation in ("gelu", "gelu_pytorch_tanh", "relu", "silu")
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "changes"), OTHER_FORMS, ids=[f"{a}-{min(c)}" for a, c in OTHER_FORMS]
)
def test_architecture_variants_equal_transformers(
    architecture: str,
    changes: dict[str, Any],
    tmp_path: Path,
    load: Callable[..., Any],
    by_transformers: Callable[[Path], Any],
) -> None:
    assert_equal_to_transformers(architecture, changes, tmp_path, load, by_transformers)


def assert_equal_to_transformers(
    architecture: str,
    changes: dict[str, Any],
    folder: Path,
    load: Callable[..., Any],
    by_transformers: Callable[[Path], Any],
) -> None:
    make_checkpoint(architecture, folder, seed=2, **changes)
    ids, expected_tokens, expected = oracle(by_transformers(folder))
    tokens, found = Session(load(architecture, folder)).generate(ids, NUM_GENERATED)
    assert (found[: len(expected)] - expected).abs().max() < TOLERANCE
    assert tokens == expected_tokens


RECURRENT_ACTIVATIONS = {
    "BailingHybridForCausalLM": "hidden_act",
    "BambaForCausalLM": "hidden_act",
    "FalconH1ForCausalLM": "hidden_act",
    "FalconMambaForCausalLM": "hidden_act",
    "GraniteMoeHybridForCausalLM": "hidden_act",
    "JambaForCausalLM": "hidden_act",
    "KimiLinearForCausalLM": "hidden_act",
    "Mamba2ForCausalLM": "hidden_act",
    "MambaForCausalLM": "hidden_act",
    "NemotronHForCausalLM": "mamba_hidden_act",
    "OlmoHybridForCausalLM": "hidden_act",
    "Qwen3NextForCausalLM": "hidden_act",
    "Qwen3_5ForCausalLM": "hidden_act",
    "Qwen3_5MoeForCausalLM": "hidden_act",
    "ZambaForCausalLM": "hidden_mamba_act",
}


@pytest.mark.parametrize("architecture", RECURRENT_ACTIVATIONS)
def test_other_activations_of_recurrent_layers_equal_transformers(
    architecture: str,
    tmp_path: Path,
    load: Callable[..., Any],
    by_transformers: Callable[[Path], Any],
) -> None:
    changes = {RECURRENT_ACTIVATIONS[architecture]: "gelu"}
    assert_equal_to_transformers(architecture, changes, tmp_path, load, by_transformers)


@pytest.mark.parametrize("architecture", ["Qwen3MoeForCausalLM", "PhimoeForCausalLM"])
def test_experts_load_from_single_and_stacked_tensors(
    architecture: str, tmp_path: Path, checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    folder = checkpoint(architecture)
    apart = load_file(folder / "model.safetensors")
    together = {name: tensor for name, tensor in apart.items() if ".experts." not in name}
    for prefix in {name.partition(".experts.")[0] for name in apart if ".experts." in name}:
        gate, up, down = (
            torch.stack(
                [apart[f"{prefix}.experts.{i}.{part}.weight"] for i in count(apart, prefix)]
            )
            for part in (
                ("w1", "w3", "w2")
                if "Phimoe" in architecture
                else ("gate_proj", "up_proj", "down_proj")
            )
        )
        together[f"{prefix}.experts.gate_up_proj"] = torch.cat([gate, up], 1)
        together[f"{prefix}.experts.down_proj"] = down
    shutil.copytree(folder, tmp_path / "together")
    save_file(together, tmp_path / "together" / "model.safetensors")
    steps = [
        Session(load(architecture, path)).step(prompt(0))
        for path in (folder, tmp_path / "together")
    ]
    assert torch.equal(*steps)


def count(tensors: dict[str, torch.Tensor], prefix: str) -> range:
    """Return the numbers of the experts under a prefix."""
    return range(
        len(
            {
                name.split(".experts.")[1].partition(".")[0]
                for name in tensors
                if f"{prefix}.experts" in name
            }
        )
    )


def test_mixed_expert_layouts_are_rejected(
    tmp_path: Path, checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    shutil.copytree(checkpoint("Qwen3MoeForCausalLM"), tmp_path / "both")
    file = tmp_path / "both" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.mlp.experts.down_proj"] = torch.zeros(8, 64, 32)
    save_file(tensors, file)
    with pytest.raises(ModelError, match="experts"):
        load("Qwen3MoeForCausalLM", tmp_path / "both")


def test_mxfp4_experts_equal_transformers(
    tmp_path: Path, checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    plain = tmp_path / "plain"
    packed = tmp_path / "packed"
    for folder in (plain, packed):
        shutil.copytree(checkpoint("GptOssForCausalLM"), folder)
    tensors = load_file(plain / "model.safetensors")
    four_bits = dict(tensors)
    unpacked = dict(tensors)
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors[name].shape
        blocks = torch.randint(
            0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=generator
        )
        scales = torch.randint(122, 126, blocks.shape[:3], dtype=torch.uint8, generator=generator)
        four_bits |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        del four_bits[name]
        unpacked[name] = convert_moe_packed_tensors(
            blocks, scales, dtype=torch.float32
        ).contiguous()
    save_file(unpacked, plain / "model.safetensors")
    save_file(four_bits, packed / "model.safetensors")
    methods = {plain: None, packed: Mxfp4({"quant_method": "mxfp4"})}
    steps = [
        Session(load("GptOssForCausalLM", folder, quant=quant)).step(prompt(0))
        for folder, quant in methods.items()
    ]
    assert torch.equal(*steps)
