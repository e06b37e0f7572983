"""GPTQ checkpoints give what their dequantized weights give, in every variant the format has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.gptq.method import Gptq
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


def config(
    bits: int = 4, group: int = 16, *, sym: bool = True, order: bool = False, **more: Any
) -> dict[str, Any]:
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": sym,
        "desc_act": order,
        **more,
    }


def writer(
    bits: int = 4, group: int = 16, *, sym: bool = True, order: bool = False, less: int = 1
) -> Writer:
    """Packed along the inputs, zero points along the outputs, each stored less one in the first
    version.
    """

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        width = weight.shape[1]
        size = width if group == -1 else group
        which = torch.arange(width) // size
        if order:
            which = which[torch.randperm(width, generator=torch.Generator().manual_seed(width))]
        codes, scales, zeros, plain = rounded(weight, bits, group, symmetric=sym, order=which)
        tensors = {
            "qweight": words(codes, bits).T.contiguous(),
            "qzeros": words((zeros - less).T, bits),
            "scales": scales.T.contiguous(),
            "g_idx": which.to(torch.int32),
        }
        return tensors, plain

    return write


def both(
    architecture: str, folder: Path, write: Writer, quant: Any, **which: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    stored, plain = packed(checkpoint(architecture, folder), write, **which)
    return scores(architecture, folder, stored, quant), scores(architecture, folder, plain)


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
def test_a_model_computes_what_its_integers_stand_for(
    bits: int, group: int, sym: bool, order: bool, tmp_path: Path
) -> None:
    write = writer(bits, group, sym=sym, order=order)
    assert_alike(*both(LLAMA, tmp_path, write, Gptq(config(bits, group, sym=sym, order=order))))


def test_zero_points_of_the_second_version_are_stored_as_they_are(tmp_path: Path) -> None:
    quant = Gptq(config(sym=False, checkpoint_format="gptq_v2"))
    assert_alike(*both(LLAMA, tmp_path, writer(sym=False, less=0), quant))


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
def test_architectures_with_experts_latents_and_fused_weights(
    architecture: str, order: bool, tmp_path: Path
) -> None:
    found, expected = both(
        architecture, tmp_path, writer(group=8, order=order), Gptq(config(group=8, order=order))
    )
    assert_alike(found, expected)


@pytest.mark.parametrize("order", [False, True])
def test_two_ranks_give_what_one_gives(order: bool, tmp_path: Path) -> None:
    stored, plain = packed(checkpoint(LLAMA, tmp_path), writer(order=order))
    found = on_two_ranks(LLAMA, tmp_path, stored, lambda: Gptq(config(order=order)))
    assert_alike(found, scores(LLAMA, tmp_path, plain))


def test_a_cut_through_a_group_is_refused_with_the_sizes_that_do(tmp_path: Path) -> None:
    stored, _ = packed(checkpoint(LLAMA, tmp_path), writer(group=32))
    with pytest.raises(
        ModelError, match=r"mlp.down_proj is stored in elements of 32 .* divides 3 of them: 1, 3\."
    ):
        on_two_ranks(LLAMA, tmp_path, stored, lambda: Gptq(config(group=32)))


def test_rules_by_name_change_bits_and_leave_layers_plain(tmp_path: Path) -> None:
    """Also of one part of a fused layer: it is kept part by part then."""
    tensors = checkpoint(LLAMA, tmp_path)
    eight = [name for name in tensors if name.endswith("v_proj.weight")]
    plain_ones = [
        name
        for name in tensors
        if name.endswith(("k_proj.weight", "layers.1.mlp.down_proj.weight"))
    ]
    four = [name for name in tensors if is_linear(name) and name not in (*eight, *plain_ones)]
    stored, plain = packed(tensors, writer(8, 32), eight.__contains__)
    stored = packed(stored, writer(), four.__contains__)[0]
    plain = packed(plain, writer(), four.__contains__)[1]
    rules = {
        r"-:.*\.k_proj": {},
        r"-:model\.layers\.1\.mlp\.down": {},
        r"+:.*\.v_proj": {"bits": 8, "group_size": 32},
        r".*v_proj": {"bits": 2},
    }
    assert_alike(
        scores(LLAMA, tmp_path, stored, Gptq(config(dynamic=rules))), scores(LLAMA, tmp_path, plain)
    )


def test_a_head_may_be_packed(tmp_path: Path) -> None:
    def which(name: str) -> bool:
        return is_linear(name) or name == "lm_head.weight"

    assert_alike(*both(LLAMA, tmp_path, writer(), Gptq(config(lm_head=True)), which=which))


def test_only_the_modules_that_are_named_are_packed(tmp_path: Path) -> None:
    def which(name: str) -> bool:
        return name.endswith(("q_proj.weight", "up_proj.weight"))

    quant = Gptq(config(modules_in_block_to_quantize=[["self_attn.q_proj"], ["mlp.up_proj"]]))
    assert_alike(*both(LLAMA, tmp_path, writer(), quant, which=which))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 5}, "5 bits in groups of 16"),
        ({"group_size": 0}, "4 bits in groups of 0"),
        (
            {"checkpoint_format": "gptq_v3"},
            "checkpoint_format is 'gptq_v3', packed into int32; read are gptq, gptq_v2",
        ),
        (
            {"checkpoint_format": "marlin"},
            "checkpoint_format is 'marlin': weights lie in the order of one GPU's kernel",
        ),
        (
            {"is_marlin_format": True},
            "checkpoint_format is 'marlin': weights lie in the order of one GPU's kernel",
        ),
        (
            {"checkpoint_format": "marlin_24"},
            "checkpoint_format is 'marlin_24': two of four numbers are left out",
        ),
        (
            {"quant_method": "gptq_marlin_24"},
            "checkpoint_format is 'marlin_24': two of four numbers are left out",
        ),
        (
            {"checkpoint_format": "bitblas"},
            "is 'bitblas': weights lie in an order that is tuned for each GPU",
        ),
        (
            {"quant_method": "bitblas"},
            "is 'bitblas': weights lie in an order that is tuned for each GPU",
        ),
    ],
)
def test_settings_that_the_format_does_not_have_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        Gptq({**config(), **change})


@pytest.mark.parametrize(
    ("break_it", "message"),
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
            "g_idx gives input columns an order.*desc_act",
        ),
        (
            lambda t: t["model.layers.0.mlp.up_proj.qzeros"].fill_(0),
            "zero points other than the middle.*sym",
        ),
    ],
)
def test_a_broken_checkpoint_is_one_clear_error(
    break_it: Any, message: str, tmp_path: Path
) -> None:
    stored, _ = packed(checkpoint(LLAMA, tmp_path), writer())
    break_it(stored)
    with pytest.raises(ModelError, match=message):
        scores(LLAMA, tmp_path, stored, Gptq(config()))


def test_a_group_that_no_column_may_have_is_refused(tmp_path: Path) -> None:
    stored, _ = packed(checkpoint(LLAMA, tmp_path), writer(order=True))
    stored["model.layers.0.mlp.up_proj.g_idx"][3] = 99
    with pytest.raises(ModelError, match="columns of group 99; there are groups 0 to 3"):
        scores(LLAMA, tmp_path, stored, Gptq(config(order=True)))


def test_groups_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    checkpoint(LLAMA, tmp_path)
    with pytest.raises(
        ModelError, match=r"mlp.down_proj has 96 inputs, which do not divide into groups of 64"
    ):
        scores(LLAMA, tmp_path, {}, Gptq(config(group=64)))


def test_a_head_is_in_no_block_and_has_rules_as_layers_have() -> None:
    """As auto-round writes GPTQ checkpoints."""
    listed = {"modules_in_block_to_quantize": [["self_attn.q_proj"]], "lm_head": True}
    quant = Gptq(config(dynamic={"+:.*lm_head.*": {"bits": 8}}, **listed))
    quant.head("lm_head")
    stored = quant.format_of("lm_head")
    assert stored is not None
    assert stored.grouping is not None
    assert stored.grouping.bits == 8
    assert quant.format_of("model.layers.0.self_attn.o_proj") is None
