"""bitsandbytes checkpoints give what their dequantized weights give: packed here, and by the
library.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.quant_methods.bitsandbytes.method import BitsAndBytes
from core.errors import ModelError
from tests.quant_methods.stored import (
    Tensors,
    Writer,
    assert_alike,
    checkpoint,
    is_linear,
    on_two_ranks,
    packed,
    scores,
)

LLAMA = "LlamaForCausalLM"
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip
FP4 = [0.0, 0.0052083333, 0.6666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25]
TABLES = {"nf4": NF4, "fp4": [*FP4, *(-value for value in FP4)]}
NESTED = 256


def config(kind: str = "nf4", *, nested: bool = False, **more: Any) -> dict[str, Any]:
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}
    return {"quant_method": "bitsandbytes", **four, "llm_int8_skip_modules": ["lm_head"], **more}


EIGHT = {
    "quant_method": "bitsandbytes",
    "load_in_8bit": True,
    "load_in_4bit": False,
    "llm_int8_skip_modules": None,
}


def writer(
    kind: str = "nf4", *, nested: bool = False, block: int = 64, storage: torch.dtype = torch.uint8
) -> Writer:
    """Flat blocks with their furthest number; two codes in a byte, the first in the upper half."""
    table = torch.tensor(TABLES[kind])

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        flat = torch.nn.functional.pad(weight.flatten(), (0, -weight.numel() % block)).view(
            -1, block
        )
        furthest = flat.abs().amax(1)
        stored = {}
        state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "float32"}
        state["shape"] = list(weight.shape)
        absmax = furthest
        if nested:
            mean = float(furthest.mean())
            second = torch.linspace(-1, 1, 256)
            blocks = torch.nn.functional.pad(furthest - mean, (0, -len(furthest) % NESTED)).view(
                -1, NESTED
            )
            largest = blocks.abs().amax(1)
            codes = (blocks / largest[:, None]).unsqueeze(-1).sub(second).abs().argmin(-1)
            furthest = (second[codes] * largest[:, None]).flatten()[: len(furthest)] + mean
            absmax = codes.flatten()[: len(furthest)].to(torch.uint8)
            state |= {"nested_blocksize": NESTED, "nested_offset": mean, "nested_dtype": "float32"}
            stored = {"weight.nested_absmax": largest, "weight.nested_quant_map": second}
        codes = (flat / furthest[:, None]).unsqueeze(-1).sub(table).abs().argmin(-1)
        plain = (table[codes] * furthest[:, None]).flatten()[: weight.numel()].view(weight.shape)
        codes = codes.flatten()[: weight.numel()]
        stored["weight"] = (
            (codes[0::2] << 4 | codes[1::2]).to(torch.uint8).view(storage).unsqueeze(1)
        )
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        stored |= {"weight.absmax": absmax, "weight.quant_map": table}
        return {**stored, f"weight.quant_state.bitsandbytes__{kind}": text}, plain

    return write


def eight_bits(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    furthest = weight.abs().amax(1)
    codes = (weight * (127 / furthest[:, None])).round().to(torch.int8)
    stored = {"weight": codes, "SCB": furthest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return stored, codes.float() * furthest[:, None] / 127


def by_the_library(kind: str, nested: bool) -> Writer:
    functional = pytest.importorskip("bitsandbytes.functional")

    def write(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        if kind == "int8":
            codes, furthest, _ = functional.int8_vectorwise_quant(weight.half())
            plain = functional.int8_vectorwise_dequant(codes, furthest).float()
            return {
                "weight": codes,
                "SCB": furthest,
                "weight_format": torch.tensor(0, dtype=torch.uint8),
            }, plain
        codes, state = functional.quantize_4bit(weight, quant_type=kind, compress_statistics=nested)
        stored = {
            "weight": codes,
            **{f"weight.{name}": own for name, own in state.as_dict(packed=True).items()},
        }
        state.shape = torch.Size(
            [weight.numel() // 64, 64]
        )  # its CPU kernel loses blocks that end in another row
        return stored, functional.dequantize_4bit(codes, state).float().view(weight.shape)

    return write


CASES: dict[str, tuple[Writer, dict[str, Any]]] = {
    "nf4": (writer(), config()),
    "nf4, scales quantized too": (writer(nested=True), config(nested=True)),
    "fp4": (writer("fp4"), config("fp4")),
    "nf4 in blocks of a row": (writer(block=32), config()),
    "nf4 in blocks of two rows": (writer(block=128), config()),
    "nf4 named bfloat16": (
        writer(storage=torch.bfloat16),
        config(bnb_4bit_quant_storage="bfloat16"),
    ),
    "int8": (eight_bits, EIGHT),
}


@pytest.mark.parametrize("name", CASES)
def test_a_model_computes_what_its_codes_stand_for(name: str, tmp_path: Path) -> None:
    """Blocks of 64 end inside of rows of 96 inputs, those of 32 with them."""
    write, facts = CASES[name]
    stored, plain = packed(checkpoint(LLAMA, tmp_path), write)
    expected = scores(LLAMA, tmp_path, plain)
    assert_alike(scores(LLAMA, tmp_path, stored, BitsAndBytes(facts)), expected)


@pytest.mark.parametrize("name", ["nf4 in blocks of a row", "int8"])
def test_two_ranks_give_what_one_gives(name: str, tmp_path: Path) -> None:
    write, facts = CASES[name]
    stored, plain = packed(checkpoint(LLAMA, tmp_path, intermediate_size=128), write)
    expected = scores(LLAMA, tmp_path, plain)
    assert_alike(on_two_ranks(LLAMA, tmp_path, stored, lambda: BitsAndBytes(facts)), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "nested"), [("nf4", False), ("nf4", True), ("fp4", True), ("int8", False)]
)
def test_what_the_library_writes_is_read(kind: str, nested: bool, tmp_path: Path) -> None:
    stored, plain = packed(checkpoint(LLAMA, tmp_path), by_the_library(kind, nested))
    facts = EIGHT if kind == "int8" else config(kind, nested=nested)
    assert_alike(
        scores(LLAMA, tmp_path, stored, BitsAndBytes(facts)), scores(LLAMA, tmp_path, plain)
    )


def test_blocks_that_ranks_would_cut_are_refused_with_the_sizes_that_do(tmp_path: Path) -> None:
    stored, _ = packed(checkpoint(LLAMA, tmp_path, intermediate_size=192), writer())
    with pytest.raises(
        ModelError, match=r"stored in elements of 64 numbers.* --tensor-parallel-size .*: 1, 3\."
    ):
        on_two_ranks(LLAMA, tmp_path, stored, lambda: BitsAndBytes(config()))


@pytest.mark.parametrize(
    "skipped", [["lm_head", "k_proj", "model.layers.1.mlp"], ["k_proj", "model.layers.1.mlp"]]
)
def test_modules_that_the_config_names_are_plain_and_a_head_may_be_stored_so(
    skipped: list[str], tmp_path: Path
) -> None:
    def which(name: str) -> bool:
        plain = "k_proj" in name or "layers.1.mlp" in name
        return (is_linear(name) and not plain) or (
            name == "lm_head.weight" and "lm_head" not in skipped
        )

    stored, plain = packed(checkpoint(LLAMA, tmp_path), writer(), which)
    quant = BitsAndBytes(config(llm_int8_skip_modules=skipped))
    assert_alike(scores(LLAMA, tmp_path, stored, quant), scores(LLAMA, tmp_path, plain))


def test_what_is_not_read_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"load_in_4bit is False, load_in_8bit False"):
        BitsAndBytes({"quant_method": "bitsandbytes"})
    with pytest.raises(ModelError, match=r"bnb_4bit_quant_type 'int4'; .* one of nf4, fp4"):
        BitsAndBytes(config("int4"))


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "weight",
            torch.zeros(7, 1, dtype=torch.uint8),
            r"has 7 bytes; \[96, 64\] of four bits are 3072",
        ),
        ("weight.absmax", torch.ones(5), "has 5 scales of blocks of 64; there are 96 blocks"),
        (
            "weight.quant_state.bitsandbytes__nf4",
            torch.zeros(9, dtype=torch.uint8),
            "a state that is not bitsandbytes'",
        ),
        ("weight.quant_map", None, "missing tensors: model.layers.0.mlp.up_proj.weight.quant_map"),
    ],
)
def test_a_broken_checkpoint_is_one_clear_error(
    name: str, tensor: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    stored, _ = packed(checkpoint(LLAMA, tmp_path), writer())
    place = f"model.layers.0.mlp.up_proj.{name}"
    del stored[place]
    stored |= {} if tensor is None else {place: tensor}
    with pytest.raises(ModelError, match=message):
        scores(LLAMA, tmp_path, stored, BitsAndBytes(config()))
