"""Checkpoints that the compressed-tensors library wrote give what it says that they stand for,
scheme by scheme.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from core.errors import ModelError
from tests.quant_methods.stored import (
    Tensors,
    Writer,
    assert_alike,
    checkpoint,
    is_linear,
    on_two_ranks,
    packed,
    rounded,
    scores,
    words,
)

LLAMA = "LlamaForCausalLM"
EXPONENTS = {"scale_dtype": "torch.uint8"}
INT_GROUPS: dict[str, Any] = {"type": "int", "strategy": "group", "group_size": 16}


def weights(bits: int = 4, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "symmetric": True, "dynamic": False, **more}


SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "int4 in groups": ("pack-quantized", weights(**INT_GROUPS)),
    "int4 in groups with zeros": ("pack-quantized", weights(**{**INT_GROUPS, "symmetric": False})),
    "int3 in groups with zeros": (
        "pack-quantized",
        weights(3, **{**INT_GROUPS, "symmetric": False}),
    ),
    "int8 in rows, packed": ("pack-quantized", weights(8, type="int", strategy="channel")),
    "int2 in groups": ("pack-quantized", weights(2, **INT_GROUPS)),
    "int8 in rows": ("int-quantized", weights(8, type="int", strategy="channel")),
    "int8 in rows with zeros": (
        "int-quantized",
        weights(8, type="int", strategy="channel", symmetric=False),
    ),
    "int8 of tensors": ("naive-quantized", weights(8, type="int", strategy="tensor")),
    "int4 in bytes": ("int-quantized", weights(4, **INT_GROUPS)),
    "fp8 of tensors": ("float-quantized", weights(8, type="float", strategy="tensor")),
    "fp8 in rows": ("float-quantized", weights(8, type="float", strategy="channel")),
    "fp8 in blocks": (
        "float-quantized",
        weights(8, type="float", strategy="block", block_structure=[16, 16]),
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        weights(
            4,
            type="float",
            strategy="tensor_group",
            group_size=16,
            scale_dtype="torch.float8_e4m3fn",
        ),
    ),
    "mxfp4": (
        "mxfp4-pack-quantized",
        weights(4, type="float", strategy="group", group_size=32, **EXPONENTS),
    ),
    "mxfp6": (
        "mxfp6-pack-quantized",
        weights(6, type="float", strategy="group", group_size=32, **EXPONENTS),
    ),
    "mxfp8": (
        "mxfp8-quantized",
        weights(8, type="float", strategy="group", group_size=32, **EXPONENTS),
    ),
}


def config(layout: str, facts: dict[str, Any], **more: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": facts}}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": groups,
        "ignore": ["lm_head"],
        **more,
    }


def by_the_library(layout: str, facts: dict[str, Any]) -> Writer:
    """Scales, rounding, packing, and what they stand for: all by the library."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = QuantizationArgs(**facts)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=layout)
    compressor = BaseCompressor.get_value_from_registry(layout)

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        state = {"weight": weight}
        if facts["strategy"] == "tensor":
            least = weight.amin().view(1)
            most = weight.amax().view(1)
        elif facts["strategy"] == "channel":
            least = weight.amin(1, keepdim=True)
            most = weight.amax(1, keepdim=True)
        elif facts["strategy"] == "block":
            rows, columns = facts["block_structure"]
            filled = torch.nn.functional.pad(
                weight, (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows)
            )
            blocks = filled.unfold(0, rows, rows).unfold(1, columns, columns)
            least = blocks.amin((2, 3))
            most = blocks.amax((2, 3))
        else:
            groups = weight.view(len(weight), -1, facts["group_size"])
            least = groups.amin(2)
            most = groups.amax(2)
        whole = None
        if facts["strategy"] == "tensor_group":
            whole = state["weight_global_scale"] = generate_gparam(weight.amin(), weight.amax())
        state["weight_scale"], zeros = calculate_qparams(least, most, args, global_scale=whole)
        if not facts["symmetric"]:
            state["weight_zero_point"] = zeros
        stored = compressor.compress(state, scheme)
        plain = compressor.decompress(stored, scheme)["weight"].float()
        if whole is not None:  # which it rounds to bfloat16
            from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

            values = unpack_fp4_from_uint8(
                stored["weight_packed"], *weight.shape, dtype=torch.float32
            )
            plain = values * (stored["weight_scale"].float() / whole).repeat_interleave(16, 1)
        return dict(stored), plain

    return write


@pytest.mark.parametrize("name", SCHEMES)
def test_a_model_computes_what_the_library_unpacks(name: str, tmp_path: Path) -> None:
    stored, plain = packed(checkpoint(LLAMA, tmp_path), by_the_library(*SCHEMES[name]))
    found = scores(LLAMA, tmp_path, stored, CompressedTensors(config(*SCHEMES[name])))
    assert_alike(found, scores(LLAMA, tmp_path, plain))


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
def test_architectures_with_experts_latents_and_fused_weights(
    architecture: str, name: str, tmp_path: Path
) -> None:
    stored, plain = packed(checkpoint(architecture, tmp_path), by_the_library(*SCHEMES[name]))
    found = scores(architecture, tmp_path, stored, CompressedTensors(config(*SCHEMES[name])))
    assert_alike(found, scores(architecture, tmp_path, plain))


@pytest.mark.parametrize(
    "name",
    ["int3 in groups with zeros", "int8 in rows", "fp8 in blocks", "nvfp4", "fp8 of tensors"],
)
def test_two_ranks_give_what_one_gives(name: str, tmp_path: Path) -> None:
    stored, plain = packed(checkpoint(LLAMA, tmp_path), by_the_library(*SCHEMES[name]))
    found = on_two_ranks(LLAMA, tmp_path, stored, lambda: CompressedTensors(config(*SCHEMES[name])))
    assert_alike(found, scores(LLAMA, tmp_path, plain))


def in_order(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Older versions of the library wrote the group of each column."""
    which = (torch.arange(weight.shape[1]) // 16)[torch.randperm(weight.shape[1])]
    codes, scales, _, plain = rounded(weight, 4, 16, symmetric=True, order=which)
    return {
        "weight_packed": words(codes, 4),
        "weight_scale": scales,
        "weight_g_idx": which.int(),
    }, plain


def test_columns_may_have_an_order(tmp_path: Path) -> None:
    stored, plain = packed(checkpoint(LLAMA, tmp_path), in_order)
    settings = config("pack-quantized", weights(**INT_GROUPS, actorder="group"))
    expected = scores(LLAMA, tmp_path, plain)
    assert_alike(scores(LLAMA, tmp_path, stored, CompressedTensors(settings)), expected)
    assert_alike(
        on_two_ranks(LLAMA, tmp_path, stored, lambda: CompressedTensors(settings)), expected
    )


def test_groups_of_the_config_name_layers_before_patterns_before_kinds(tmp_path: Path) -> None:
    tensors = checkpoint(LLAMA, tmp_path)
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
        write = by_the_library(*SCHEMES[name])
        stored = packed(stored, write, chosen)[0]
        plain = packed(plain, write, chosen)[1]
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
    assert_alike(
        scores(LLAMA, tmp_path, stored, CompressedTensors(settings)), scores(LLAMA, tmp_path, plain)
    )


def test_head_and_embedding_may_be_quantized(tmp_path: Path) -> None:
    def which(name: str) -> bool:
        return is_linear(name) or name in ("lm_head.weight", "model.embed_tokens.weight")

    layout, facts = SCHEMES["int8 in rows"]
    stored, plain = packed(checkpoint(LLAMA, tmp_path), by_the_library(layout, facts), which)
    groups = {"group_0": {"targets": ["Linear", "Embedding"], "weights": facts}}
    quant = CompressedTensors({**config(layout, facts), "config_groups": groups, "ignore": []})
    assert_alike(scores(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


def test_what_is_said_of_activations_is_read_and_not_needed(tmp_path: Path) -> None:
    """Scales of rounded activations: these are not rounded here, which is nearer to the weights'
    own product.
    """
    layout, facts = SCHEMES["fp8 of tensors"]
    stored, plain = packed(checkpoint(LLAMA, tmp_path), by_the_library(layout, facts))
    stored |= {
        name.replace("weight_scale", "input_scale"): torch.ones(1)
        for name in stored
        if "weight_scale" in name
    }
    assert_alike(
        scores(LLAMA, tmp_path, stored, CompressedTensors(config(layout, facts))),
        scores(LLAMA, tmp_path, plain),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format": "marlin-24"},
            "weights of 4 bits, type 'int', in format 'marlin-24' are not read. Read are",
        ),
        (
            {"sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparsity_config has format 'sparse-24-bitmask'",
        ),
        ({"transform_config": {"config_groups": {"u": {}}}}, "transform_config has u: rotations"),
        ({"config_groups": {"g": 3}}, "config_groups.g is 3; it is an object"),
        (
            {"config_groups": {"g": {"weights": {"strategy": "group"}}}},
            "strategy 'group' with group_size None",
        ),
    ],
)
def test_what_is_not_read_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        CompressedTensors({**config("pack-quantized", weights(**INT_GROUPS)), **change})


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "weight_scale",
            torch.ones(96, 3),
            r"up_proj.weight_scale has scales of shape \[96, 3\].* which is \[96, 4\]",
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
def test_a_broken_checkpoint_is_one_clear_error(
    name: str, tensor: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    stored, _ = packed(checkpoint(LLAMA, tmp_path), lambda weight: (in_order(weight)[0], weight))
    stored = {key: value for key, value in stored.items() if "g_idx" not in key}
    place = f"model.layers.0.mlp.up_proj.{name}"
    stored = {key: value for key, value in stored.items() if key != place} | (
        {place: tensor} if tensor is not None else {}
    )
    with pytest.raises(ModelError, match=message):
        scores(
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
def test_activations_are_rounded_only_as_they_come_and_to_eight_bits(
    activations: Any, bits: int
) -> None:
    facts = config("int-quantized", weights(8, type="int", strategy="channel"))
    facts["config_groups"]["group_0"]["input_activations"] = activations
    stored = CompressedTensors(facts).decide("model.layers.0.mlp.down_proj")
    assert stored is not None
    assert stored.grouping is not None
    assert stored.grouping.x_bits == bits


@pytest.mark.parametrize("mixture", ["block_sparse_moe", "mlp"])
def test_mixtrals_experts_may_have_names_of_transformers_memory(
    mixture: str, tmp_path: Path
) -> None:
    layout, facts = SCHEMES["fp8 in rows"]
    stored, plain = packed(
        checkpoint("MixtralForCausalLM", tmp_path),
        by_the_library(layout, facts),
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
    assert_alike(
        scores("MixtralForCausalLM", tmp_path, named, quant),
        scores("MixtralForCausalLM", tmp_path, plain),
    )
