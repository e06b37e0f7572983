"""Linear layers: slices by name, adapters on them, and any quantization method."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from core.api import Part
from core.errors import ModelError
from core.models.layers.linear import Linear, PlainLinear, Slice
from core.models.layers.parallel import ParallelGroup
from core.models.layers.weights import WeightMap
from core.testing.one_sequence import plain_context


def test_a_fused_layer_names_the_rows_of_its_slices() -> None:
    weights = WeightMap()
    layer = Linear(
        plain_context(), weights, "a", 4, [Slice("gate", 3, "a.gate"), Slice("up", 5, "a.up")]
    )
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


class Halves(PlainLinear):
    """A method with scales by row, as plugins wrote it before `Part`: tensors arrive cut."""

    suffixes = ("weight", "scale")
    num_finished = 0

    def create(self, layer: Any, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        super().create(layer, in_features, out_features, dtype)
        layer.scale = torch.zeros(out_features)

    def load(self, layer: Any, suffix: str, tensor: torch.Tensor, rows: slice) -> None:  # type: ignore[override]
        if suffix == "scale":
            layer.scale[rows] = tensor
        else:
            super().load(layer, suffix, tensor, rows)

    def finish(self, layer: Any) -> None:
        self.num_finished += 1
        layer.weight.data = layer.weight * layer.scale[:, None]


class Scaled(Halves):
    """The same with whole tensors."""

    def load(self, layer: Any, suffix: str, tensor: torch.Tensor, part: Part) -> None:  # type: ignore[override]
        super().load(
            layer,
            suffix,
            part.rows(tensor) if suffix == "scale" else part.columns(part.rows(tensor)),
            part.target,
        )


class Every:
    """A quantization method that gives every linear layer the same kind of method."""

    name = "every"

    def __init__(self, method: Callable[[], Any]) -> None:
        self.linear = lambda prefix: method()


@pytest.mark.parametrize(("method", "says"), [(Halves, True), (Scaled, False)])
def test_a_method_names_its_tensors_and_is_told_once_when_all_are_in(
    method: type[Halves], says: bool
) -> None:
    weights = WeightMap()
    context = replace(plain_context(), quant=Every(method))
    slices = [Slice("x", 2, "a.x"), Slice("y", 1, "a.y")]
    with (
        pytest.warns(DeprecationWarning, match=r"Halves: .*core\.api\.Part")
        if says
        else nullcontext()
    ):
        layer = Linear(context, weights, "a", 2, slices)
    weights.load(
        [
            ("a.x.weight", torch.ones(2, 2)),
            ("a.x.scale", torch.tensor([2.0, 3.0])),
            ("a.y.weight", torch.ones(1, 2)),
            ("a.y.scale", torch.tensor([4.0])),
        ]
    )
    layer.finish()  # what models of plugins did by themselves repacks nothing twice
    assert layer(torch.ones(1, 2)).tolist() == [[4.0, 6.0, 8.0]]
    assert layer.method.num_finished == 1


@pytest.mark.parametrize("split", ["rows", "columns"])
def test_a_method_of_cut_tensors_still_serves_each_of_two_ranks(split: str) -> None:
    weight = torch.arange(32.0).view(8, 4)
    scale = torch.arange(1.0, 9.0)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    found = []
    for rank in range(2):
        weights = WeightMap()
        context = replace(plain_context(ParallelGroup(2, rank)), quant=Every(Halves))
        with pytest.warns(DeprecationWarning, match="Halves"):
            layer = Linear(context, weights, "a", 4, [Slice("x", 8)], split=split)
        weights.load([("a.weight", weight), ("a.scale", scale)])
        found.append(layer(x if split == "rows" else x[:, 2 * rank : 2 * rank + 2]))
    whole = x @ (weight * scale[:, None]).T
    torch.testing.assert_close(
        torch.cat(found, 1) if split == "rows" else found[0] + found[1], whole
    )


def test_a_fused_layer_is_asked_for_by_its_first_prefix_and_shows_the_others() -> None:
    asked: list[str] = []
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
            asked.append(prefix)
            return Looking()

    Linear(
        replace(plain_context(), quant=Method()),
        WeightMap(),
        "fused",
        2,
        [Slice("q", 2, "a.q"), Slice("k", 2, "a.k")],
    )
    assert (asked, seen) == (["a.q"], [["a.q", "a.k"]])


def test_missing_and_unexpected_tensors_are_named_together() -> None:
    weights = WeightMap(ignored=("*.inv_freq",))
    Linear(plain_context(), weights, "layer.proj", 2, [Slice("o", 2)], bias=True)
    with pytest.raises(ModelError) as refused:
        weights.load([("layer.prj.weight", torch.ones(2, 2)), ("a.inv_freq", torch.ones(1))])
    assert "2 missing tensors: layer.proj.weight; did you mean 'layer.prj.weight'?" in str(
        refused.value
    )
    assert "1 unexpected tensors: layer.prj.weight" in str(refused.value)


def test_a_tensor_given_twice_is_refused() -> None:
    weights = WeightMap()
    Linear(plain_context(), weights, "p", 2, [Slice("o", 2)])
    with pytest.raises(ModelError, match=r"p\.weight \(twice\)"):
        weights.load([("p.weight", torch.ones(2, 2))] * 2)
