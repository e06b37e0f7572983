"""Layers with packed plain weights: equal products on one and two ranks, and partial reloads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from core_kernels.library import load_library

from builtin_plugins.quant_methods.cpu_packed.experts import PackedExperts
from builtin_plugins.quant_methods.cpu_packed.method import PackedLinear, make_method
from core.config import EngineConfig
from core.contracts.models import BuildContext
from core.errors import ModelError
from core.model_spec.parallel import ParallelGroup
from core.models.layers.embedding import Embedding, Head
from core.models.layers.linear import Linear, PlainLinear, Slice
from core.models.layers.quantization import plain_weights
from core.models.layers.weights import WeightMap
from core.models.ops import reference
from core.plugin import load_plan, make_plan
from core.testing.one_sequence import plain_context

pytestmark = pytest.mark.skipif(load_library() is None, reason="no C++ library on this machine")


class Whole(ParallelGroup):
    """A rank without all-reduce; the test sums over ranks."""

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def packing(group: ParallelGroup | None = None, dtype: torch.dtype = torch.float32) -> BuildContext:
    return replace(plain_context(group, dtype), plain=make_method())


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("split", ["", "rows", "columns"])
def test_ranks_pack_their_shard_of_fused_rows(split: str, transposed: bool) -> None:
    gate = torch.randn(48, 36)
    up = torch.randn(80, 36)
    x = torch.randn(5, 36)
    tensors = [("a.gate.weight", gate), ("a.up.weight", up)]
    found = []
    for rank in range(2 if split else 1):
        weights = WeightMap()
        group = Whole(2 if split else 1, rank)
        slices = [Slice("gate", 48, "a.gate"), Slice("up", 80, "a.up")]
        layer = Linear(packing(group), weights, "a", 36, slices, split=split, transposed=transposed)
        assert isinstance(layer.method, PackedLinear)
        weights.load(
            [(name, tensor.T.contiguous() if transposed else tensor) for name, tensor in tensors]
        )
        found.append(layer(x[:, group.own(36)] if split == "columns" else x))
    if split == "rows":
        halves = [(part[:, :24], part[:, 24:]) for part in found]
        found = [torch.cat([half[0] for half in halves] + [half[1] for half in halves], 1)]
    torch.testing.assert_close(sum(found), x @ torch.cat((gate, up)).T)


def test_weight_update_repacks_in_place() -> None:
    weights = WeightMap()
    x = torch.randn(3, 20)
    layer = Linear(packing(), weights, "a", 20, [Slice("q", 32, "a.q"), Slice("k", 16, "a.k")])
    weights.load([("a.q.weight", torch.randn(32, 20)), ("a.k.weight", torch.randn(16, 20))])
    before = layer(x)
    address = layer.weight.data_ptr()  # type: ignore[operator,union-attr]
    key = torch.randn(16, 20)
    weights.update([("a.k.weight", key)])
    assert layer.weight.data_ptr() == address  # type: ignore[operator,union-attr]
    assert torch.equal(layer(x)[:, :32], before[:, :32])
    torch.testing.assert_close(layer(x)[:, 32:], x @ key.T)


def test_integer_weights_are_rejected() -> None:
    weights = WeightMap()
    Linear(packing(), weights, "a", 8, [Slice("a", 8)])
    with pytest.raises(ModelError, match="is stored as int8, but config"):
        weights.load([("a.weight", torch.zeros(8, 8, dtype=torch.int8))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tied_head_and_embedding_share_packed_rows(dtype: torch.dtype) -> None:
    weights = WeightMap()
    context = packing(dtype=dtype)
    table = torch.randn(37, 24).to(dtype)
    embed = Embedding(37, 24, context, weights, "embed", is_head=True)
    head = Head(37, 24, context, weights, "head", tied_to=embed)
    weights.load([("embed.weight", table)])
    ids = torch.tensor([36, 0, 5, 5])
    assert torch.equal(embed(ids), table[ids])
    x = torch.randn(4, 24).to(dtype)
    torch.testing.assert_close(head(x), (x.float() @ table.float().T), rtol=1e-2, atol=1e-2)
    assert isinstance(Embedding(37, 24, context, WeightMap(), "other").method, PlainLinear)


@pytest.mark.parametrize("activation", ["silu", "relu2_alone"])
def test_experts_match_reference_moe(activation: str) -> None:
    class Layer(torch.nn.Module):
        gated = not activation.endswith("alone")
        bias = None
        ops = plain_context().ops

    layer: Any = Layer()
    layer.activation = activation
    made = make_method()
    method: Any = made.experts("x")  # type: ignore[attr-defined]
    assert isinstance(method, PackedExperts)
    method.create(layer, 4, 12, 20, torch.float32)
    gate_up = torch.randn(4, 24 if Layer.gated else 12, 20)
    down = torch.randn(4, 20, 12)
    for name, weight in (("gate_up", gate_up), ("down", down)):
        for index in range(4):
            method._ops.pack(layer.get_parameter(name)[index], weight.shape[1], 0, weight[index])
    for count in (0, 1, 9):
        x = torch.randn(count, 20)
        shares = torch.rand(count, 2)
        chosen = torch.randint(0, 4, (count, 2))
        expected = reference.moe(x, gate_up, down, shares, chosen, activation)
        found = method.apply(layer, x, shares, chosen)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        alone = [
            method.apply(layer, x[i : i + 1], shares[i : i + 1], chosen[i : i + 1])
            for i in range(count)
        ]
        assert torch.equal(found, torch.cat([found[:0], *alone]))


def test_device_without_entry_uses_plain_weights() -> None:
    registry = load_plan(make_plan([]))
    config = EngineConfig()
    assert plain_weights(config, registry, {"device": "cuda"}) is None
    found = plain_weights(config, registry, {"device": "cpu"})
    assert found is not None
    assert found.name == "packed"
