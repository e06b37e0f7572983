"""Stacked experts are read in the layout that a decoder states, or in either of two."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from builtin_plugins.models import qwen_moe
from core.errors import ModelError
from core.models.layers.decoder import Decoder
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import Session, plain_context, read_config

IDS = list(range(100, 120))


def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint in which no stacked tensor has the same shape in both layouts."""
    return make_checkpoint("Qwen3MoeForCausalLM", tmp_path / "model", moe_intermediate_size=24)


def stacked(tensors: dict[str, torch.Tensor], *, columns: bool) -> dict[str, torch.Tensor]:
    """Return the tensors with all experts of a layer in two of them."""
    found = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for prefix in sorted({n.partition(".experts.")[0] for n in tensors if ".experts." in n}):
        experts = range(sum(n.startswith(f"{prefix}.experts.") for n in tensors) // 3)

        def every(name: str, prefix: str = prefix, experts: range = experts) -> torch.Tensor:
            return torch.stack([tensors[f"{prefix}.experts.{i}.{name}.weight"] for i in experts])

        both = {
            "gate_up_proj": torch.cat([every("gate_proj"), every("up_proj")], 1),
            "down_proj": every("down_proj"),
        }
        for name, tensor in both.items():
            whole = tensor.transpose(1, 2).contiguous() if columns else tensor
            found[f"{prefix}.experts.{name}"] = whole
    return found


def read(folder: Path, tensors: dict[str, torch.Tensor], layout: Any) -> torch.Tensor:
    spec = qwen_moe.qwen3_moe(read_config(folder))
    spec = replace(spec, names=replace(spec.names, experts_layout=layout))
    decoder = Decoder(spec, plain_context())
    decoder.load_weights(tensors.items())
    return Session(decoder).step(IDS)


@pytest.mark.parametrize("columns", [False, True])
def test_either_layout_of_stacked_experts_is_read(tmp_path: Path, columns: bool) -> None:
    folder = checkpoint(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    expected = read(folder, tensors, "rows")
    assert torch.equal(read(folder, stacked(tensors, columns=columns), "either"), expected)


def test_other_layout_than_the_stated_one_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    with pytest.raises(ModelError, match="tensors of the wrong shape"):
        read(folder, stacked(tensors, columns=True), "rows")


def test_tensor_of_neither_layout_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    tensors = stacked(load_file(folder / "model.safetensors"), columns=True)
    name = next(name for name in tensors if name.endswith("experts.down_proj"))
    tensors[name] = tensors[name][:, :-1]
    with pytest.raises(ModelError, match="tensors of the wrong shape"):
        read(folder, tensors, "either")
