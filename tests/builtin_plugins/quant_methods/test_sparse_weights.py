"""Sparse weights of compressed-tensors equal the dense ones they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from builtin_plugins.quant_methods.cpu_packed.method import make_method
from core.errors import ModelError
from tests.builtin_plugins.quant_methods.writers.compressed_tensors import (
    SCHEMES,
    config,
    library_writer,
)
from tests.builtin_plugins.quant_methods.writers.model import (
    Tensors,
    assert_close,
    is_linear,
    logprobs,
    logprobs_tp2,
    plain_tensors,
)

LLAMA = "LlamaForCausalLM"


def two_of_four(weight: torch.Tensor) -> torch.Tensor:
    """Return the mask of the two largest of four adjacent numbers."""
    fours = weight.abs().view(len(weight), -1, 4)
    chosen = fours.argsort(-1, descending=True)[..., :2]
    return torch.zeros_like(fours).scatter_(-1, chosen, 1).flatten(-2).bool()


def compress(weight: torch.Tensor, mask: torch.Tensor) -> Tensors:
    """Return the tensors that the library stores for a weight with these numbers."""
    numbers = weight.view(torch.int8) if weight.dtype.itemsize == 1 else weight
    values = numbers[mask].view(weight.dtype)
    bits = torch.from_numpy(np.packbits(mask.numpy(), axis=-1, bitorder="little"))
    return {
        "compressed": values.view(len(weight), -1),
        "bitmask": bits,
        "shape": torch.tensor(weight.shape),
    }


def checkpoint(scheme: str, folder: Path, architecture: str = LLAMA) -> tuple[Tensors, Tensors]:
    """Return a sparse checkpoint, and the dense one of its numbers."""
    stored: Tensors = {}
    plain: Tensors = {}
    for name, tensor in plain_tensors(architecture, folder).items():
        if not is_linear(name):
            stored[name] = plain[name] = tensor
            continue
        mask = two_of_four(tensor)
        dense = tensor * mask
        tensors: Tensors = {"weight": dense}
        if scheme:
            tensors, dense = library_writer(*SCHEMES[scheme])(dense)
        plain[name] = dense
        tensors |= compress(tensors.pop("weight"), mask)
        stem = name.removesuffix(".weight")
        stored |= {f"{stem}.{suffix}": value for suffix, value in tensors.items()}
    return stored, plain


def method(scheme: str, stored: Tensors, **more: Any) -> CompressedTensors:
    """Return the method for such a checkpoint."""
    facts = config(*SCHEMES[scheme]) if scheme else config("dense", {}) | {"config_groups": {}}
    found = CompressedTensors({**facts, "sparsity_config": {"format": "sparse-24-bitmask"}, **more})
    found.set_checkpoint_dtypes({name: tensor.dtype for name, tensor in stored.items()})
    return found


@pytest.mark.parametrize("scheme", ["", "fp8 in rows", "fp8 of tensors", "int8 in rows"])
def test_model_matches_dense_weights(scheme: str, tmp_path: Path) -> None:
    stored, plain = checkpoint(scheme, tmp_path)
    expected = logprobs(LLAMA, tmp_path, plain)
    assert_close(logprobs(LLAMA, tmp_path, stored, method(scheme, stored)), expected)
    device: Any = make_method()
    found = logprobs(LLAMA, tmp_path, stored, method(scheme, stored), plain=device)
    assert_close(found, expected)
    assert_close(logprobs_tp2(LLAMA, tmp_path, stored, lambda: method(scheme, stored)), expected)


def test_sparse_experts_match(tmp_path: Path) -> None:
    architecture = "MixtralForCausalLM"
    stored, plain = checkpoint("fp8 in rows", tmp_path, architecture)
    found = logprobs(architecture, tmp_path, stored, method("fp8 in rows", stored))
    assert_close(found, logprobs(architecture, tmp_path, plain))


@pytest.mark.parametrize(
    ("suffix", "tensor", "message"),
    [
        ("bitmask", torch.zeros(64, 8, dtype=torch.uint8), "numbers; expected 0, one per bit"),
        ("bitmask", torch.zeros(2, 2, dtype=torch.uint8), r"bitmask: expected \[64, 8\]"),
        ("shape", torch.tensor([3, 4]), r"sparse weight of shape \[3, 4\]; expected \[64, 64\]"),
        ("compressed", None, "missing tensors: model.layers.0.self_attn.o_proj.compressed"),
    ],
)
def test_damaged_tensors_are_rejected(
    suffix: str, tensor: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    stored, _ = checkpoint("", tmp_path)
    name = f"model.layers.0.self_attn.o_proj.{suffix}"
    del stored[name]
    if tensor is not None:
        stored[name] = tensor
    with pytest.raises(ModelError, match=message):
        logprobs(LLAMA, tmp_path, stored, method("", stored))
