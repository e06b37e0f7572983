"""Linear layers: slices by name, adapters on them, and any quantization method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from core.errors import ModelError
from core.nn.linear import Linear, PlainLinear, Slice
from core.nn.weights import WeightMap
from core.testing.one_sequence import plain_context


def test_a_fused_layer_names_the_rows_of_its_slices() -> None:
    weights = WeightMap()
    layer = Linear(plain_context(), weights, "a", 4, [Slice("gate", 3, "a.gate"), Slice("up", 5, "a.up")])
    assert layer.slices == {"gate": slice(0, 3), "up": slice(3, 8)}
    assert weights.shapes() == {"a.gate.weight": (3, 4), "a.up.weight": (5, 4)}


def test_an_adapter_changes_one_slice() -> None:
    weights = WeightMap()
    layer = Linear(plain_context(), weights, "a", 2, [Slice("q", 2, "a.q"), Slice("v", 2, "a.v")])
    weights.load([("a.q.weight", torch.eye(2)), ("a.v.weight", torch.eye(2))])

    def double_v(of: Linear, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out[..., of.slices["v"]] += x
        return out

    layer.adapter = double_v
    assert layer(torch.tensor([[1.0, 2.0]])).tolist() == [[1.0, 2.0, 2.0, 4.0]]


def test_a_method_names_its_tensors_and_is_told_when_all_are_in() -> None:
    class Halves(PlainLinear):
        suffixes = ("weight", "scale")

        def create(self, layer: Any, in_features: int, out_features: int, dtype: torch.dtype) -> None:
            super().create(layer, in_features, out_features, dtype)
            layer.scale = torch.zeros(out_features)

        def load(self, layer: Any, suffix: str, tensor: torch.Tensor, rows: slice) -> None:
            if suffix == "scale":
                layer.scale[rows] = tensor
            else:
                super().load(layer, suffix, tensor, rows)

        def finish(self, layer: Any) -> None:
            layer.weight.data = layer.weight * layer.scale[:, None]

    class Method:
        name = "halves"

        def linear(self, prefix: str) -> Halves:
            return Halves()

    weights = WeightMap()
    layer = Linear(
        replace(plain_context(), quant=Method()), weights, "a", 2, [Slice("x", 2, "a.x"), Slice("y", 1, "a.y")]
    )
    weights.load(
        [
            ("a.x.weight", torch.ones(2, 2)),
            ("a.x.scale", torch.tensor([2.0, 3.0])),
            ("a.y.weight", torch.ones(1, 2)),
            ("a.y.scale", torch.tensor([4.0])),
        ]
    )
    layer.finish()
    assert layer(torch.ones(1, 2)).tolist() == [[4.0, 6.0, 8.0]]


def test_missing_and_unexpected_tensors_are_named_together() -> None:
    weights = WeightMap(ignored=("*.inv_freq",))
    Linear(plain_context(), weights, "layer.proj", 2, [Slice("o", 2)], bias=True)
    with pytest.raises(ModelError) as refused:
        weights.load([("layer.prj.weight", torch.ones(2, 2)), ("a.inv_freq", torch.ones(1))])
    assert "2 missing tensors: layer.proj.weight; did you mean 'layer.prj.weight'?" in str(refused.value)
    assert "1 unexpected tensors: layer.prj.weight" in str(refused.value)


def test_a_tensor_given_twice_is_refused() -> None:
    weights = WeightMap()
    Linear(plain_context(), weights, "p", 2, [Slice("o", 2)])
    with pytest.raises(ModelError, match=r"p\.weight \(twice\)"):
        weights.load([("p.weight", torch.ones(2, 2))] * 2)
