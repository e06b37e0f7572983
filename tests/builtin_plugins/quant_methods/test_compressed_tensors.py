"""Checkpoints of the compressed-tensors library match its decompression, scheme by scheme."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers.compressed_tensors import (
    INT_GROUPS,
    SCHEMES,
    config,
    library_writer,
    weights,
)
from tests.builtin_plugins.quant_methods.writers.model import (
    CheckModel,
    Tensors,
    assert_close,
    is_linear,
    logprobs,
    pack_words,
    plain_tensors,
    quantize,
    round_weight,
)

LLAMA = "LlamaForCausalLM"


@pytest.mark.parametrize("name", SCHEMES)
def test_model_matches_library_decompression(name: str, check_model: CheckModel) -> None:
    settings = config(*SCHEMES[name])
    check_model(library_writer(*SCHEMES[name]), lambda: CompressedTensors(settings))


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("Qwen3MoeForCausalLM", "int4 in groups with zeros"),
        ("Qwen3MoeForCausalLM", "nvfp4"),
        ("DeepseekV3ForCausalLM", "fp8 in rows"),
        ("MixtralForCausalLM", "mxfp4"),
        ("MixtralForCausalLM", "int8 in rows"),
        ("Gemma3ForCausalLM", "fp8 in blocks"),
        ("Phi3ForCausalLM", "int4 in groups"),
    ],
)
def test_moe_mla_and_fused_architectures_match(
    architecture: str, name: str, check_model: CheckModel
) -> None:
    settings = config(*SCHEMES[name])
    check_model(library_writer(*SCHEMES[name]), lambda: CompressedTensors(settings), architecture)


@pytest.mark.parametrize(
    "name",
    ["int3 in groups with zeros", "int8 in rows", "fp8 in blocks", "nvfp4", "fp8 of tensors"],
)
def test_tp2_matches_tp1(name: str, check_model: CheckModel) -> None:
    settings = config(*SCHEMES[name])
    check_model(library_writer(*SCHEMES[name]), lambda: CompressedTensors(settings), ranks=(2,))


def in_order(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Older versions of the library stored the group of each column."""
    which = (torch.arange(weight.shape[1]) // 16)[torch.randperm(weight.shape[1])]
    codes, scales, _, plain = round_weight(weight, 4, 16, symmetric=True, order=which)
    return {
        "weight_packed": pack_words(codes, 4),
        "weight_scale": scales,
        "weight_g_idx": which.int(),
    }, plain


def test_g_idx_is_applied(check_model: CheckModel) -> None:
    settings = config("pack-quantized", weights(**INT_GROUPS, actorder="group"))
    check_model(in_order, lambda: CompressedTensors(settings), ranks=(1, 2))


def test_target_names_precede_patterns_and_types(tmp_path: Path) -> None:
    tensors = plain_tensors(LLAMA, tmp_path)
    named = "model.layers.1.self_attn.q_proj.weight"
    which = {
        "int4 in groups": lambda name: name == named,
        "fp8 in rows": lambda name: name.endswith("v_proj.weight"),
        "int8 in rows": lambda name: (
            is_linear(name)
            and name != named
            and not name.endswith(("v_proj.weight", "k_proj.weight"))
        ),
    }
    stored = plain = tensors
    for name, chosen in which.items():
        write = library_writer(*SCHEMES[name])
        stored = quantize(stored, write, chosen)[0]
        plain = quantize(plain, write, chosen)[1]
    targets = [["model.layers.1.self_attn.q_proj"], [r"re:.*\.v_proj$"], ["Linear"]]
    groups = {
        f"group_{index}": {"targets": own, "weights": SCHEMES[name][1], "format": SCHEMES[name][0]}
        for index, (own, name) in reversed(list(enumerate(zip(targets, which, strict=True))))
    }
    settings = {
        **config("mixed-precision", {}),
        "config_groups": groups,
        "ignore": ["lm_head", "re:.*k_proj"],
    }
    assert_close(
        logprobs(LLAMA, tmp_path, stored, CompressedTensors(settings)),
        logprobs(LLAMA, tmp_path, plain),
    )


def test_head_and_embedding_may_be_quantized(check_model: CheckModel) -> None:
    def which(name: str) -> bool:
        return is_linear(name) or name in ("lm_head.weight", "model.embed_tokens.weight")

    layout, facts = SCHEMES["int8 in rows"]
    groups = {"group_0": {"targets": ["Linear", "Embedding"], "weights": facts}}
    settings = {**config(layout, facts), "config_groups": groups, "ignore": []}
    check_model(library_writer(layout, facts), lambda: CompressedTensors(settings), which=which)


def test_static_activation_scales_are_not_used_by_default(tmp_path: Path) -> None:
    """Without rounded activations the product is closer to the exact one."""
    layout, facts = SCHEMES["fp8 of tensors"]
    stored, plain = quantize(plain_tensors(LLAMA, tmp_path), library_writer(layout, facts))
    stored |= {
        name.replace("weight_scale", "input_scale"): torch.ones(1)
        for name in stored
        if "weight_scale" in name
    }
    assert_close(
        logprobs(LLAMA, tmp_path, stored, CompressedTensors(config(layout, facts))),
        logprobs(LLAMA, tmp_path, plain),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format": "marlin-24"},
            "got weights of 4 bits, type 'int', format 'marlin-24'; expected",
        ),
        (
            {"sparsity_config": {"format": "marlin-24"}},
            "sparsity_config.format: got 'marlin-24'; expected dense weights or sparse-24-bitmask",
        ),
        (
            {"transform_config": {"config_groups": {"u": {}}}},
            "transform_config: got u; activation rotations",
        ),
        ({"config_groups": {"g": 3}}, "config_groups.g: got 3; expected an object"),
        (
            {"config_groups": {"g": {"weights": {"strategy": "group"}}}},
            "strategy: got 'group' with group_size None",
        ),
    ],
)
def test_unsupported_config_is_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        CompressedTensors({**config("pack-quantized", weights(**INT_GROUPS)), **change})


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "weight_scale",
            torch.ones(96, 3),
            r"up_proj.weight_scale has scales of shape \[96, 3\]; expected \[96, 4\]",
        ),
        (
            "weight_packed",
            torch.zeros(96, 7, dtype=torch.int32),
            r"weight_packed: expected \[96, 8\], found \[96, 7\]",
        ),
        ("weight_packed", torch.zeros(96, 8), "up_proj.* holds float32"),
        ("weight_packed", None, "missing tensors: model.layers.0.mlp.up_proj.weight_packed"),
    ],
)
def test_broken_checkpoint_raises_one_error(
    name: str, tensor: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    stored, _ = quantize(
        plain_tensors(LLAMA, tmp_path), lambda weight: (in_order(weight)[0], weight)
    )
    stored = {key: value for key, value in stored.items() if "g_idx" not in key}
    damaged = f"model.layers.0.mlp.up_proj.{name}"
    del stored[damaged]
    if tensor is not None:
        stored[damaged] = tensor
    with pytest.raises(ModelError, match=message):
        logprobs(
            LLAMA,
            tmp_path,
            stored,
            CompressedTensors(config("pack-quantized", weights(**INT_GROUPS))),
        )


@pytest.mark.parametrize(
    ("activations", "bits"),
    [
        (
            {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True},
            8,
        ),
        (
            {
                "num_bits": 8,
                "type": "int",
                "strategy": "token",
                "dynamic": True,
                "symmetric": False,
            },
            16,
        ),
        (
            {
                "num_bits": 8,
                "type": "int",
                "strategy": "tensor",
                "dynamic": False,
                "symmetric": True,
            },
            16,
        ),
        (
            {
                "num_bits": 8,
                "type": "float",
                "strategy": "token",
                "dynamic": True,
                "symmetric": True,
            },
            16,
        ),
        (None, 16),
    ],
)
def test_activation_bits_follow_dynamic_per_token_config(activations: Any, bits: int) -> None:
    facts = config("int-quantized", weights(8, type="int", strategy="channel"))
    facts["config_groups"]["group_0"]["input_activations"] = activations
    stored = CompressedTensors(facts).choose_format("model.layers.0.mlp.down_proj")
    assert stored is not None
    assert stored.layout_spec is not None
    assert stored.layout_spec.activation_bits == bits


@pytest.mark.parametrize(
    ("changes", "bits"), [({}, 4), ({"dynamic": False}, 16), ({"group_size": 16}, 16)]
)
def test_mxfp4_activations_are_known(changes: dict[str, Any], bits: int) -> None:
    facts = config(*SCHEMES["mxfp4"])
    activations = {"num_bits": 4, "type": "float", "group_size": 32, "dynamic": True, **changes}
    facts["config_groups"]["group_0"]["input_activations"] = activations
    stored = CompressedTensors(facts).choose_format("model.layers.0.mlp.down_proj")
    assert stored is not None
    assert stored.layout_spec is not None
    assert stored.layout_spec.activation_bits == bits


@pytest.mark.parametrize("mixture", ["block_sparse_moe", "mlp"])
def test_mixtral_experts_with_transformers_names(mixture: str, tmp_path: Path) -> None:
    layout, facts = SCHEMES["fp8 in rows"]
    stored, plain = quantize(
        plain_tensors("MixtralForCausalLM", tmp_path),
        library_writer(layout, facts),
        lambda name: is_linear(name) and ".experts.0.w2." not in name,
    )
    ignored = [f"model.layers.{layer}.{mixture}.experts.0.down_proj" for layer in range(3)]
    named = {}
    for name, tensor in stored.items():
        for here, there in (
            (".w1.", ".gate_proj."),
            (".w2.", ".down_proj."),
            (".w3.", ".up_proj."),
        ):
            name = name.replace(here, there)
        named[name.replace("block_sparse_moe", mixture)] = tensor
    quant = CompressedTensors(config(layout, facts, ignore=["lm_head", *ignored]))
    assert_close(
        logprobs("MixtralForCausalLM", tmp_path, named, quant),
        logprobs("MixtralForCausalLM", tmp_path, plain),
    )
