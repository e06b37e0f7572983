"""Linear layers: named slices, adapters, and any quantization method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from core.errors import ModelError
from core.model_spec.weight_shard import WeightShard
from core.models.layers.linear import Linear, PlainLinear, Slice
from core.models.layers.weights import WeightMap
from core.testing.one_sequence import plain_context


def test_fused_linear_exposes_rows_of_slices() -> None:
    weights = WeightMap()
    layer = Linear(
        plain_context(), weights, "a", 4, [Slice("gate", 3, "a.gate"), Slice("up", 5, "a.up")]
    )
    assert layer.slices == {"gate": slice(0, 3), "up": slice(3, 8)}
    assert weights.shapes() == {"a.gate.weight": (3, 4), "a.up.weight": (5, 4)}


def test_adapter_changes_one_slice() -> None:
    weights = WeightMap()
    layer = Linear(plain_context(), weights, "a", 2, [Slice("q", 2, "a.q"), Slice("v", 2, "a.v")])
    weights.load([("a.q.weight", torch.eye(2)), ("a.v.weight", torch.eye(2))])

    def double_v(of: Linear, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out[..., of.slices["v"]] += x
        return out

    layer.adapter = double_v
    assert layer(torch.tensor([[1.0, 2.0]])).tolist() == [[1.0, 2.0, 2.0, 4.0]]


class RowScaled(PlainLinear):
    """A method with a scale per row, applied when the load ends."""

    suffixes = ("weight", "scale")
    num_finished = 0

    def create(self, layer: Any, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        super().create(layer, in_features, out_features, dtype)
        layer.scale = torch.zeros(out_features)

    def load(self, layer: Any, suffix: str, tensor: torch.Tensor, part: WeightShard) -> None:
        if suffix == "scale":
            layer.scale[part.target] = part.rows(tensor)
        else:
            super().load(layer, suffix, tensor, part)

    def finish(self, layer: Any) -> None:
        self.num_finished += 1
        layer.weight.data = layer.weight * layer.scale[:, None]


class Every:
    """A quantization method that gives every linear layer the same kind of method."""

    name = "every"

    def __init__(self, method: Callable[[], Any]) -> None:
        self.linear = lambda prefix: method()


def test_method_names_its_tensors_and_finishes_once() -> None:
    weights = WeightMap()
    context = replace(plain_context(), quant=Every(RowScaled))
    slices = [Slice("x", 2, "a.x"), Slice("y", 1, "a.y")]
    layer = Linear(context, weights, "a", 2, slices)
    weights.load(
        [
            ("a.x.weight", torch.ones(2, 2)),
            ("a.x.scale", torch.tensor([2.0, 3.0])),
            ("a.y.weight", torch.ones(1, 2)),
            ("a.y.scale", torch.tensor([4.0])),
        ]
    )
    layer.finish()  # a second call must not repack
    assert layer(torch.ones(1, 2)).tolist() == [[4.0, 6.0, 8.0]]
    assert layer.method.num_finished == 1


def test_fused_layer_uses_first_prefix_for_its_method() -> None:
    requested: list[str] = []
    seen: list[list[str]] = []

    class Looking(PlainLinear):
        def create(
            self, layer: Any, in_features: int, out_features: int, dtype: torch.dtype
        ) -> None:
            seen.append(list(layer.parts))
            super().create(layer, in_features, out_features, dtype)

    class Method:
        name = "looking"

        def linear(self, prefix: str) -> Looking:
            requested.append(prefix)
            return Looking()

    Linear(
        replace(plain_context(), quant=Method()),
        WeightMap(),
        "fused",
        2,
        [Slice("q", 2, "a.q"), Slice("k", 2, "a.k")],
    )
    assert (requested, seen) == (["a.q"], [["a.q", "a.k"]])


def test_missing_and_unexpected_tensors_are_reported_together() -> None:
    weights = WeightMap(ignored=("*.inv_freq",))
    Linear(plain_context(), weights, "layer.proj", 2, [Slice("o", 2)], bias=True)
    with pytest.raises(ModelError) as refused:
        weights.load([("layer.prj.weight", torch.ones(2, 2)), ("a.inv_freq", torch.ones(1))])
    assert "2 missing tensors: layer.proj.weight; did you mean 'layer.prj.weight'?" in str(
        refused.value
    )
    assert "1 unexpected tensors: layer.prj.weight" in str(refused.value)


def test_duplicate_tensor_is_rejected() -> None:
    weights = WeightMap()
    Linear(plain_context(), weights, "p", 2, [Slice("o", 2)])
    with pytest.raises(ModelError, match=r"p\.weight \(twice\)"):
        weights.load([("p.weight", torch.ones(2, 2))] * 2)
