"""Every format and scheme by every kind of architecture: alone and on two ranks, against
dequantize-then-multiply in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.quant_methods.auto_round.method import AutoRound
from builtin_plugins.quant_methods.awq.method import Awq
from builtin_plugins.quant_methods.bitsandbytes.method import BitsAndBytes
from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.fp_quant.method import FpQuant
from builtin_plugins.quant_methods.gptq.method import Gptq
from builtin_plugins.quant_methods.hqq.method import Hqq
from builtin_plugins.quant_methods.quark.method import Quark
from builtin_plugins.quant_methods.stored.method import StoredMethod
from builtin_plugins.quant_methods.torchao.method import TorchAo
from tests.quant_methods import (
    test_auto_round,
    test_awq,
    test_bitsandbytes,
    test_compressed_tensors,
    test_floats,
    test_fp_quant,
    test_gptq,
    test_hqq,
    test_quark,
    test_torchao,
)
from tests.quant_methods.stored import (
    Writer,
    assert_alike,
    checkpoint,
    on_two_ranks,
    packed,
    scores,
)

WIDE = {"hidden_size": 128, "intermediate_size": 128}
LATENT = {"q_lora_rank": 64, "kv_lora_rank": 64, "v_head_dim": 32}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {**WIDE, "head_dim": 32},
    "Qwen3MoeForCausalLM": {**WIDE, "head_dim": 32, "moe_intermediate_size": 64},
    "Gemma3ForCausalLM": {**WIDE, "head_dim": 32},
    "DeepseekV3ForCausalLM": {**WIDE, **LATENT, "moe_intermediate_size": 64},
    "MixtralForCausalLM": {**WIDE, "head_dim": 32},
}
"""Sizes of which two ranks have whole groups of 32 each."""

Case = tuple[Writer, Callable[[], StoredMethod]]


def gptq() -> dict[str, Case]:
    """Return each number of bits, with groups of three sizes, with and without zero points and
    activation order.
    """
    kinds: list[tuple[int, int, dict[str, Any]]] = [
        (bits, group, {"sym": sym, "order": order})
        for bits, group in ((2, 16), (3, 32), (4, 16), (4, 32), (4, -1), (8, 32), (8, -1))
        for sym in (True, False)
        for order in (False, True)
        if not (order and group == -1)
    ]
    return {
        f"gptq {bits} bits, groups of {group}, "
        f"{'no ' * more['sym']}zeros{', ordered' * more['order']}": (
            test_gptq.writer(bits, group, **more),
            lambda bits=bits, group=group, more=more: Gptq(test_gptq.config(bits, group, **more)),  # type: ignore[misc]
        )
        for bits, group, more in kinds
    }


def compressed(name: str) -> Case:
    layout, facts = test_compressed_tensors.SCHEMES[name]
    settings = test_compressed_tensors.config(layout, facts)
    return test_compressed_tensors.by_the_library(layout, facts), lambda: CompressedTensors(
        settings
    )


def cases() -> dict[str, Case]:
    """Return all there are, by name."""
    found = gptq()
    for group in (16, 32, -1):
        found[f"awq, groups of {group}"] = (
            test_awq.writer(group),
            lambda g=group: Awq(test_awq.config(g)),
        )  # type: ignore[misc]
    for packing, sym, write in (
        ("auto_round", False, test_gptq.writer(sym=False, less=0)),
        ("auto_round:auto_gptq", True, test_gptq.writer()),
        ("auto_round:auto_awq", False, test_awq.writer()),
    ):
        settings = test_auto_round.config(packing, sym=sym)
        found[f"auto-round, {packing}"] = (write, lambda s=settings: AutoRound(s))  # type: ignore[misc]
    found |= {
        f"compressed-tensors {name}": compressed(name) for name in test_compressed_tensors.SCHEMES
    }
    early = "fp8 in blocks that end early"  # two ranks' rows end inside such a block
    found |= {
        name: case
        for name, case in test_floats.CASES.items()
        if name not in (early, "modelopt FP8 in blocks")
    }
    for name, (write, facts) in test_quark.CASES.items():
        found[f"quark {name}"] = (write, lambda f=facts: Quark(test_quark.config(f)))  # type: ignore[misc]
    for bits, group, axis in test_hqq.CASES:
        facts = test_hqq.config(bits, group, axis)
        found[f"hqq {bits} bits, groups of {group}, axis {axis}"] = (
            test_hqq.writer(bits, group, axis),
            lambda f=facts: Hqq(f),  # type: ignore[misc]
        )
    for name in ("nf4 in blocks of a row", "int8"):
        write, facts = test_bitsandbytes.CASES[name]
        found[f"bitsandbytes {name}"] = (write, lambda f=facts: BitsAndBytes(f))  # type: ignore[misc]
    for name, (write, facts) in test_fp_quant.CASES.items():
        found[f"fp_quant {name}"] = (write, lambda f=facts: FpQuant(f))  # type: ignore[misc]
    for name, (write, facts) in test_torchao.CASES.items():
        found[f"torchao {name}"] = (write, lambda f=facts: TorchAo(test_torchao.config(f)))  # type: ignore[misc]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_rank_and_two_compute_what_is_stored(
    architecture: str, name: str, tmp_path: Path
) -> None:
    write, quant = cases()[name]
    stored, plain = packed(checkpoint(architecture, tmp_path, **ARCHITECTURES[architecture]), write)
    expected = scores(architecture, tmp_path, plain)
    assert_alike(scores(architecture, tmp_path, stored, quant()), expected)
    assert_alike(on_two_ranks(architecture, tmp_path, stored, quant), expected)
