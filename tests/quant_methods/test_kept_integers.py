"""Numbers of stored formats are kept as they are by the C++ kernels: near the plain product, small,
loaded again in part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from core_kernels.library import load_library

from builtin_plugins.quant_methods.awq.method import Awq
from builtin_plugins.quant_methods.bitsandbytes.method import BitsAndBytes
from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.gptq.method import Gptq
from builtin_plugins.quant_methods.hqq.method import Hqq
from builtin_plugins.quant_methods.packed.floats import PackedFloatExperts, PackedFloats
from builtin_plugins.quant_methods.packed.groups import kept_group, repeated
from builtin_plugins.quant_methods.packed.ints import PackedIntExperts, PackedInts
from builtin_plugins.quant_methods.packed.method import make_method
from builtin_plugins.quant_methods.stored.keeping import PlainKeeper, keeper_of
from builtin_plugins.quant_methods.stored.method import StoredMethod
from builtin_plugins.quant_methods.torchao.method import TorchAo
from core.errors import ModelError
from tests.quant_methods import (
    test_awq,
    test_bitsandbytes,
    test_compressed_tensors,
    test_floats,
    test_gptq,
    test_hqq,
    test_torchao,
)
from tests.quant_methods.stored import Tensors, Writer, assert_alike, checkpoint, packed, scores
from tests.quant_methods.test_layouts import whole

pytestmark = pytest.mark.skipif(load_library() is None, reason="no C++ library on this machine")

LLAMA = "LlamaForCausalLM"
ROWS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}


def in_rows(weight: torch.Tensor) -> Any:
    scales = (weight.abs().amax(1, keepdim=True) / 127).bfloat16().float()
    codes = (weight / scales).round().clamp(-128, 127).to(torch.int8)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales


def gptq(bits: int, group: int, *, sym: bool = True, order: bool = False) -> tuple[Writer, Any]:
    settings = test_gptq.config(bits, group, sym=sym, order=order)
    return test_gptq.writer(bits, group, sym=sym, order=order), lambda: Gptq(settings)


def bits_and_bytes(kind: str) -> tuple[Writer, Any]:
    """Of rows of 96 inputs blocks of 64 end inside: those are made plain."""
    return test_bitsandbytes.writer(kind, nested=True), lambda: BitsAndBytes(
        test_bitsandbytes.config(kind, nested=True)
    )


def hqq(bits: int) -> tuple[Writer, Any]:
    return test_hqq.writer(bits), lambda: Hqq(test_hqq.config(bits))


NIBBLES = test_torchao.CASES["int4 in nibbles"][1]
CASES: dict[str, tuple[Writer, Any]] = {
    "gptq, 4 bits": gptq(4, 16),
    "gptq, 4 bits with order": gptq(4, 16, order=True),
    "gptq, 4 bits with zeros": gptq(4, 32, sym=False),
    "gptq, 3 bits with zeros": gptq(3, 32, sym=False),
    "gptq, 2 bits": gptq(2, 16),
    "gptq, 8 bits in rows": gptq(8, -1),
    "gptq, 8 bits with zeros": gptq(8, 32, sym=False),
    "gptq, 4 bits with zeros and order": gptq(4, 16, sym=False, order=True),
    "awq": (test_awq.writer(16), lambda: Awq(test_awq.config(16))),
    **{
        f"floats: {name}": test_floats.CASES[name]
        for name in ("fp8 in blocks", "fbgemm_fp8", "modelopt NVFP4")
    },
    **{f"bitsandbytes {kind}": bits_and_bytes(kind) for kind in ("nf4", "fp4")},
    **{f"hqq, {bits} bits": hqq(bits) for bits in (4, 3, 8)},
    "torchao int4": (
        test_torchao.CASES["int4 in nibbles"][0],
        lambda: TorchAo(test_torchao.config(NIBBLES)),
    ),
    "int8 in rows": (
        in_rows,
        lambda: CompressedTensors(test_compressed_tensors.config("int-quantized", ROWS)),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("architecture", [LLAMA, "Qwen3MoeForCausalLM"])
def test_a_model_computes_what_its_integers_stand_for(
    architecture: str, name: str, tmp_path: Path
) -> None:
    write, quant = CASES[name]
    stored, plain = packed(checkpoint(architecture, tmp_path), write)
    found = scores(architecture, tmp_path, stored, quant(), plain=make_method())
    assert_alike(found, scores(architecture, tmp_path, plain))


def keepers(quant: StoredMethod) -> tuple[Any, Any]:
    plain: Any = make_method()
    stored = quant.format_of("model.layers.0.a")
    return tuple(
        keeper_of(stored, lambda made=made: made("x"), whole(8, 256))
        for made in (plain.linear, plain.experts)
    )  # type: ignore[misc,return-value]


def test_who_keeps_what() -> None:
    assert [type(keeper) for keeper in keepers(CASES["awq"][1]())] == [PackedInts, PackedIntExperts]
    assert [type(keeper) for keeper in keepers(CASES["gptq, 4 bits with order"][1]())] == [
        PackedInts,
        PlainKeeper,
    ]
    assert [type(keeper) for keeper in keepers(gptq(8, 32, sym=False)[1]())] == [
        PackedInts,
        PackedIntExperts,
    ]
    assert [type(keeper) for keeper in keepers(gptq(8, 12, sym=False)[1]())] == [
        PlainKeeper,
        PlainKeeper,
    ]
    assert [type(keeper) for keeper in keepers(test_floats.fp8())] == [
        PackedFloats,
        PackedFloatExperts,
    ]
    assert [type(keeper) for keeper in keepers(test_floats.modelopt("NVFP4"))] == [
        PackedFloats,
        PackedFloatExperts,
    ]
    assert [type(keeper) for keeper in keepers(CASES["bitsandbytes nf4"][1]())] == [
        PackedFloats,
        PackedFloatExperts,
    ]
    assert [type(keeper) for keeper in keepers(CASES["hqq, 4 bits"][1]())] == [
        PackedInts,
        PackedIntExperts,
    ]
    assert [type(keeper) for keeper in keepers(hqq_columns())] == [PlainKeeper, PlainKeeper]
    assert [kept_group(size) for size in (-1, 32, 48, 12, 512, 1024)] == [128, 32, 48, 0, 256, 256]


@pytest.mark.parametrize(
    ("width", "of", "group", "groups"),
    [(1280, 1024, 256, [0] * 4 + [1]), (300, 300, 128, [0] * 3), (96, 32, 32, [0, 1, 2])],
)
def test_a_group_of_a_format_may_be_several_of_the_kernels(
    width: int, of: int, group: int, groups: list[int]
) -> None:
    scales = torch.arange(-(-width // of)).expand(2, -1)
    assert repeated(scales, width, of, group).tolist() == [groups, groups]


def hqq_columns() -> StoredMethod:
    """Return a method whose groups lie along the outputs."""
    return Hqq(test_hqq.config(4, 16, 0))


@pytest.mark.parametrize(("inputs", "kind"), [([128, 64], PackedFloats), ([128, 96], PlainKeeper)])
def test_rows_that_end_inside_of_blocks_are_made_plain(inputs: list[int], kind: type) -> None:
    stored = BitsAndBytes(test_bitsandbytes.config()).format_of("model.layers.0.a")
    plain: Any = make_method()
    assert type(keeper_of(stored, lambda: plain.linear("x"), whole(8, inputs[0]), inputs)) is kind


def test_smaller_blocks_and_other_tables_than_those_that_are_kept_are_refused(
    tmp_path: Path,
) -> None:
    def load(tensors: Tensors) -> None:
        scores(
            LLAMA, tmp_path, tensors, BitsAndBytes(test_bitsandbytes.config()), plain=make_method()
        )

    tensors = checkpoint(LLAMA, tmp_path)
    with pytest.raises(
        ModelError,
        match=r"gate_proj.* has groups of 32 inputs, and the kernels keep 64; use --plugins",
    ):
        load(packed(tensors, test_bitsandbytes.writer(block=32))[0])
    stored = packed(tensors, test_bitsandbytes.writer())[0]
    stored["model.layers.0.mlp.up_proj.weight.quant_map"] = torch.linspace(-1, 1, 16)
    with pytest.raises(
        ModelError, match=r"up_proj.* has another table of numbers than what it is kept with"
    ):
        load(stored)


def test_an_order_with_unequal_groups_is_refused(tmp_path: Path) -> None:
    write, quant = CASES["gptq, 4 bits with order"]
    stored, _ = packed(checkpoint(LLAMA, tmp_path), write)
    stored["model.layers.0.mlp.up_proj.g_idx"][:20] = 1
    with pytest.raises(ModelError, match=r"up_proj.* has groups of unequal numbers of columns"):
        scores(LLAMA, tmp_path, stored, quant(), plain=make_method())
