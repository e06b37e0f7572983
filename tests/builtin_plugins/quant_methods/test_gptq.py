"""GPTQ checkpoints compute the same as their dequantized weights, in every variant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.gptq.method import Gptq
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers.gptq import config, writer
from tests.builtin_plugins.quant_methods.writers.model import (
    CheckModel,
    assert_close,
    is_linear,
    logprobs,
    logprobs_tp2,
    plain_tensors,
    quantize,
)

LLAMA = "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("bits", "group", "sym", "order"),
    [
        (4, 16, True, False),
        (4, 32, False, True),
        (8, -1, True, False),
        (8, 32, False, False),
        (3, 16, True, True),
        (3, 32, False, False),
        (2, 16, False, False),
    ],
)
def test_model_matches_dequantized_weights(
    bits: int, group: int, sym: bool, order: bool, check_model: CheckModel
) -> None:
    settings = config(bits, group, sym=sym, order=order)
    check_model(writer(bits, group, sym=sym, order=order), lambda: Gptq(settings))


def test_gptq_v2_zero_points_have_no_offset(check_model: CheckModel) -> None:
    settings = config(sym=False, checkpoint_format="gptq_v2")
    check_model(writer(sym=False, zero_point_offset=0), lambda: Gptq(settings))


@pytest.mark.parametrize(
    "architecture",
    [
        "Qwen3MoeForCausalLM",
        "DeepseekV3ForCausalLM",
        "Gemma3ForCausalLM",
        "MixtralForCausalLM",
        "Phi3ForCausalLM",
    ],
)
@pytest.mark.parametrize("order", [False, True])
def test_moe_mla_and_fused_architectures_match(
    architecture: str, order: bool, check_model: CheckModel
) -> None:
    settings = config(group=8, order=order)
    check_model(writer(group=8, order=order), lambda: Gptq(settings), architecture)


@pytest.mark.parametrize("order", [False, True])
def test_tp2_matches_tp1(order: bool, check_model: CheckModel) -> None:
    check_model(writer(order=order), lambda: Gptq(config(order=order)), ranks=(2,))


def test_shards_that_cut_groups_are_rejected_with_valid_tp_sizes(tmp_path: Path) -> None:
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path), writer(group=32))
    with pytest.raises(
        ModelError, match=r"mlp.down_proj is stored in elements of 32 .* divides 3 of them: 1, 3\."
    ):
        logprobs_tp2(LLAMA, tmp_path, stored, lambda: Gptq(config(group=32)))


def test_dynamic_rules_override_bits_and_skip_layers(tmp_path: Path) -> None:
    """Rules may match one part of a fused layer, which then has one backend per part."""
    tensors = plain_tensors(LLAMA, tmp_path)
    eight = [name for name in tensors if name.endswith("v_proj.weight")]
    plain_ones = [
        name
        for name in tensors
        if name.endswith(("k_proj.weight", "layers.1.mlp.down_proj.weight"))
    ]
    four = [name for name in tensors if is_linear(name) and name not in (*eight, *plain_ones)]
    stored, plain = quantize(tensors, writer(8, 32), eight.__contains__)
    stored = quantize(stored, writer(), four.__contains__)[0]
    plain = quantize(plain, writer(), four.__contains__)[1]
    rules = {
        r"-:.*\.k_proj": {},
        r"-:model\.layers\.1\.mlp\.down": {},
        r"+:.*\.v_proj": {"bits": 8, "group_size": 32},
        r".*v_proj": {"bits": 2},
    }
    assert_close(
        logprobs(LLAMA, tmp_path, stored, Gptq(config(dynamic=rules))),
        logprobs(LLAMA, tmp_path, plain),
    )


def test_head_may_be_quantized(check_model: CheckModel) -> None:
    def which(name: str) -> bool:
        return is_linear(name) or name == "lm_head.weight"

    check_model(writer(), lambda: Gptq(config(lm_head=True)), which=which)


def test_modules_in_block_to_quantize_limits_quantization(check_model: CheckModel) -> None:
    def which(name: str) -> bool:
        return name.endswith(("q_proj.weight", "up_proj.weight"))

    listed = [["self_attn.q_proj"], ["mlp.up_proj"]]
    settings = config(modules_in_block_to_quantize=listed)
    check_model(writer(), lambda: Gptq(settings), which=which)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 5}, "got 5 bits with group_size 16"),
        ({"group_size": 0}, "got 4 bits with group_size 0"),
        (
            {"checkpoint_format": "gptq_v3"},
            "checkpoint_format: got 'gptq_v3' packed into int32; expected one of gptq, gptq_v2",
        ),
        (
            {"checkpoint_format": "marlin"},
            "checkpoint_format: got 'marlin'; weights are in the order of one GPU kernel",
        ),
        (
            {"is_marlin_format": True},
            "checkpoint_format: got 'marlin'; weights are in the order of one GPU kernel",
        ),
        (
            {"checkpoint_format": "marlin_24"},
            "checkpoint_format: got 'marlin_24'; weights are 2:4 sparse",
        ),
        (
            {"quant_method": "gptq_marlin_24"},
            "checkpoint_format: got 'marlin_24'; weights are 2:4 sparse",
        ),
        (
            {"checkpoint_format": "bitblas"},
            "got 'bitblas'; weights are in an order tuned for each GPU",
        ),
        (
            {"quant_method": "bitblas"},
            "got 'bitblas'; weights are in an order tuned for each GPU",
        ),
    ],
)
def test_unsupported_settings_are_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Gptq({**config(), **change})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda t: t.pop("model.layers.1.mlp.up_proj.scales"),
            "missing tensors: model.layers.1.mlp.up_proj.scales",
        ),
        (
            lambda t: t.update(
                {"model.layers.0.mlp.up_proj.qweight": torch.zeros(7, 96, dtype=torch.int32)}
            ),
            r"mlp.up_proj.qweight: expected \[8, 96\], found \[7, 96\]",
        ),
        (
            lambda t: t.update({"model.layers.0.mlp.up_proj.qweight": torch.zeros(8, 96)}),
            "mlp.up_proj.* holds float32",
        ),
        (
            lambda t: t["model.layers.0.mlp.up_proj.g_idx"].random_(
                0, 4, generator=torch.Generator().manual_seed(1)
            ),
            "g_idx has an activation order.*desc_act",
        ),
        (
            lambda t: t["model.layers.0.mlp.up_proj.qzeros"].fill_(0),
            "asymmetric zero points.*sym",
        ),
    ],
)
def test_broken_checkpoint_raises_one_error(damage: Any, message: str, tmp_path: Path) -> None:
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path), writer())
    damage(stored)
    with pytest.raises(ModelError, match=message):
        logprobs(LLAMA, tmp_path, stored, Gptq(config()))


def test_g_idx_out_of_range_is_rejected(tmp_path: Path) -> None:
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path), writer(order=True))
    stored["model.layers.0.mlp.up_proj.g_idx"][3] = 99
    with pytest.raises(ModelError, match="columns of group 99; expected groups 0 to 3"):
        logprobs(LLAMA, tmp_path, stored, Gptq(config(order=True)))


def test_group_size_must_divide_inputs(tmp_path: Path) -> None:
    plain_tensors(LLAMA, tmp_path)
    with pytest.raises(
        ModelError, match=r"mlp.down_proj has 96 inputs; .* multiple of group size 64"
    ):
        logprobs(LLAMA, tmp_path, {}, Gptq(config(group=64)))


def test_dynamic_rules_apply_to_head() -> None:
    """As in GPTQ checkpoints of auto-round."""
    listed = {"modules_in_block_to_quantize": [["self_attn.q_proj"]], "lm_head": True}
    quant = Gptq(config(dynamic={"+:.*lm_head.*": {"bits": 8}}, **listed))
    quant.head("lm_head")
    stored = quant.format_of("lm_head")
    assert stored is not None
    assert stored.layout_spec is not None
    assert stored.layout_spec.bits == 8
    assert quant.format_of("model.layers.0.self_attn.o_proj") is None
