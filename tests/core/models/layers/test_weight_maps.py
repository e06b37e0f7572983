"""Weight maps: nested maps, and updates in place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from builtin_plugins.models import llama
from core.errors import ModelError
from core.models.layers.decoder import Decoder
from core.models.layers.linear import Linear, PlainLinear, Slice
from core.models.layers.weights import WeightMap
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import Session, plain_context, read_config

IDS = list(range(100, 120))


def made(tmp_path: Path, seed: int = 3) -> tuple[Decoder, dict[str, torch.Tensor]]:
    folder = make_checkpoint("LlamaForCausalLM", tmp_path / str(seed), seed=seed)
    return Decoder(llama.spec(read_config(folder)), plain_context()), load_file(
        folder / "model.safetensors"
    )


def tower() -> tuple[WeightMap, Linear]:
    weights = WeightMap(rename=[(r"^blocks\.", "layers.")], ignored=["*.num_batches"])
    return weights, Linear(plain_context(), weights, "layers.0.proj", 2, [Slice("out", 3)])


def test_nested_weight_maps_share_a_checkpoint(tmp_path: Path) -> None:
    decoder, tensors = made(tmp_path)
    seeing, proj = tower()
    weights = WeightMap(rename=[(r"^model\.vision_tower\.", "tower.")])
    weights.add_map("language_model.", decoder.weights)
    weights.add_map("tower.", seeing)
    stored = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    stored |= {
        "model.vision_tower.blocks.0.proj.weight": torch.ones(3, 2),
        "tower.a.num_batches": torch.ones(1),
    }
    assert set(weights.shapes()) == {
        *(f"language_model.{name}" for name in tensors),
        "tower.layers.0.proj.weight",
    }
    weights.load(stored.items())
    alone, _ = made(tmp_path / "alone")
    alone.load_weights(tensors.items())
    assert torch.equal(
        Session(decoder).step(IDS), Session(alone).step(IDS)
    )  # tables were computed as well
    assert proj(torch.ones(1, 2)).tolist() == [[2.0] * 3]


def test_nested_map_errors_use_full_names(tmp_path: Path) -> None:
    weights = WeightMap()
    seeing, _ = tower()
    weights.add_map("tower.", seeing)
    with pytest.raises(ModelError) as refused:
        weights.load(
            [
                ("tower.blocks.1.proj.weight", torch.ones(3, 2)),
                ("layers.0.proj.weight", torch.ones(3, 2)),
            ]
        )
    assert "1 missing tensors: tower.layers.0.proj.weight" in str(refused.value)
    assert "2 unexpected tensors: tower.blocks.1.proj.weight; layers.0.proj.weight" in str(
        refused.value
    )


def test_nested_map_accepts_stacked_experts() -> None:
    outer = WeightMap()
    inner = WeightMap()
    found = {}
    inner.add("apart", (1,), lambda tensor: found.update(apart=tensor))
    inner.add_alternative("together", (2,), lambda tensor: found.update(together=tensor), ["apart"])
    outer.add_map("a.", inner)
    outer.load([("a.together", torch.ones(2))])
    assert list(found) == ["together"]


def test_weights_are_updated_in_place(tmp_path: Path) -> None:
    decoder, tensors = made(tmp_path)
    other, others = made(tmp_path, seed=4)
    decoder.load_weights(tensors.items())
    other.load_weights(others.items())
    addresses = {name: parameter.data_ptr() for name, parameter in decoder.named_parameters()}
    before = {name: tensor.clone() for name, tensor in others.items()}
    half = len(others) // 2
    for some in (list(others.items())[:half], list(others.items())[half:]):
        decoder.update_weights(some)
    assert torch.equal(Session(decoder).step(IDS), Session(other).step(IDS))
    assert addresses == {
        name: parameter.data_ptr() for name, parameter in decoder.named_parameters()
    }
    others["model.norm.weight"].zero_()  # the sender may reuse its memory
    norm = dict(decoder.named_parameters())["norm.weight"]
    assert not torch.equal(norm, others["model.norm.weight"])
    assert torch.equal(norm, before["model.norm.weight"])


def test_invalid_update_changes_nothing(tmp_path: Path) -> None:
    decoder, tensors = made(tmp_path)
    decoder.load_weights(tensors.items())
    before = Session(decoder).step(IDS)
    with pytest.raises(ModelError) as refused:
        decoder.update_weights(
            [
                ("model.norm.weight", torch.zeros_like(tensors["model.norm.weight"])),
                ("model.layers.9.mlp.up_proj.weight", torch.zeros(1)),
                ("model.layers.0.mlp.up_proj.weight", torch.zeros(3, 2)),
            ]
        )
    assert "the loaded model" in str(refused.value)
    assert "unexpected tensors: model.layers.9.mlp.up_proj.weight" in str(refused.value)
    assert "model.layers.0.mlp.up_proj.weight: expected" in str(refused.value)
    assert "missing" not in str(refused.value)
    assert torch.equal(Session(decoder).step(IDS), before)


def test_update_repacks_only_touched_layers() -> None:
    finished: list[int] = []

    class Counting(PlainLinear):
        def finish(self, layer: torch.nn.Module) -> None:
            finished.append(layer.out_features)  # type: ignore[arg-type]

    class Method:
        name = "counting"

        def linear(self, prefix: str) -> Counting:
            return Counting()

    weights = WeightMap()
    context = replace(plain_context(), quant=Method())
    Linear(context, weights, "a", 2, [Slice("q", 2, "a.q"), Slice("k", 1, "a.k")])
    Linear(context, weights, "b", 2, [Slice("o", 5)])
    sizes = {"a.q": 2, "a.k": 1, "b": 5}
    weights.load((f"{name}.weight", torch.ones(rows, 2)) for name, rows in sizes.items())
    assert finished == [3, 5]
    weights.update([("b.weight", torch.zeros(5, 2))])
    assert finished == [3, 5, 5]
