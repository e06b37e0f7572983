"""bitsandbytes checkpoints compute the same as their dequantized weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builtin_plugins.quant_methods.bitsandbytes.method import BitsAndBytes
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers.bitsandbytes import (
    CASES,
    EIGHT,
    config,
    library_writer,
    writer,
)
from tests.builtin_plugins.quant_methods.writers.model import (
    CheckModel,
    is_linear,
    logprobs,
    logprobs_tp2,
    plain_tensors,
    quantize,
)

LLAMA = "LlamaForCausalLM"


@pytest.mark.parametrize("name", CASES)
def test_model_matches_dequantized_weights(name: str, check_model: CheckModel) -> None:
    """Blocks of 64 end inside rows of 96 inputs, blocks of 32 with them."""
    write, facts = CASES[name]
    check_model(write, lambda: BitsAndBytes(facts))


@pytest.mark.parametrize("name", ["nf4 in blocks of a row", "int8"])
def test_tp2_matches_tp1(name: str, check_model: CheckModel) -> None:
    write, facts = CASES[name]
    check_model(write, lambda: BitsAndBytes(facts), ranks=(2,), intermediate_size=128)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "nested"), [("nf4", False), ("nf4", True), ("fp4", True), ("int8", False)]
)
def test_library_checkpoint_is_read(kind: str, nested: bool, check_model: CheckModel) -> None:
    facts = EIGHT if kind == "int8" else config(kind, nested=nested)
    check_model(library_writer(kind, nested), lambda: BitsAndBytes(facts))


def test_shards_that_cut_blocks_are_rejected_with_valid_tp_sizes(tmp_path: Path) -> None:
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path, intermediate_size=192), writer())
    with pytest.raises(
        ModelError, match=r"stored in elements of 64 numbers.* --tensor-parallel-size .*: 1, 3\."
    ):
        logprobs_tp2(LLAMA, tmp_path, stored, lambda: BitsAndBytes(config()))


@pytest.mark.parametrize(
    "skipped", [["lm_head", "k_proj", "model.layers.1.mlp"], ["k_proj", "model.layers.1.mlp"]]
)
def test_skip_modules_are_plain_and_head_may_be_quantized(
    skipped: list[str], check_model: CheckModel
) -> None:
    def which(name: str) -> bool:
        plain = "k_proj" in name or "layers.1.mlp" in name
        is_head = name == "lm_head.weight" and "lm_head" not in skipped
        return (is_linear(name) and not plain) or is_head

    check_model(writer(), lambda: BitsAndBytes(config(llm_int8_skip_modules=skipped)), which=which)


def test_unsupported_config_is_rejected() -> None:
    with pytest.raises(ModelError, match=r"load_in_4bit=False, load_in_8bit=False"):
        BitsAndBytes({"quant_method": "bitsandbytes"})
    with pytest.raises(ModelError, match=r"bnb_4bit_quant_type='int4'; .* a type of nf4, fp4"):
        BitsAndBytes(config("int4"))


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "weight",
            torch.zeros(7, 1, dtype=torch.uint8),
            r"has 7 bytes; expected 3072 for \[96, 64\]",
        ),
        ("weight.absmax", torch.ones(5), "has 5 scales for blocks of 64; expected 96"),
        (
            "weight.quant_state.bitsandbytes__nf4",
            torch.zeros(9, dtype=torch.uint8),
            "has an invalid bitsandbytes quant_state",
        ),
        ("weight.quant_map", None, "missing tensors: model.layers.0.mlp.up_proj.weight.quant_map"),
    ],
)
def test_broken_checkpoint_raises_one_error(
    name: str, tensor: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    stored, _ = quantize(plain_tensors(LLAMA, tmp_path), writer())
    key = f"model.layers.0.mlp.up_proj.{name}"
    del stored[key]
    stored |= {} if tensor is None else {key: tensor}
    with pytest.raises(ModelError, match=message):
        logprobs(LLAMA, tmp_path, stored, BitsAndBytes(config()))
