"""`--quantization int8` and `int4`: layers approximate the plain ones, on any rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from core_kernels.library import load_library

from builtin_plugins.quant_methods.cpu_packed.experts import PackedExperts
from builtin_plugins.quant_methods.rtn import method as rtn
from builtin_plugins.quant_methods.rtn.torch_ops import TorchOps
from core.config import EngineConfig
from core.contracts.models import BuildContext
from core.errors import ModelError
from core.model_spec.parallel import ParallelGroup
from core.models.layers.embedding import Embedding, Head
from core.models.layers.experts import PlainExperts
from core.models.layers.linear import Linear, PlainLinear, Slice
from core.models.layers.weights import WeightMap
from core.models.ops import reference
from core.testing.one_sequence import plain_context

METHODS: dict[str, Callable[..., rtn.RoundToNearest]] = {"int8": rtn.Int8, "int4": rtn.Int4}
ERROR = {"int8": 0.02, "int4": 0.2}
"""Maximum relative error of a product."""

pytestmark = pytest.mark.skipif(load_library() is None, reason="no C++ library on this machine")


class Whole(ParallelGroup):
    """A rank without all-reduce; the test sums over ranks."""

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def rounding(
    name: str, group: ParallelGroup | None = None, dtype: torch.dtype = torch.float32
) -> BuildContext:
    return replace(plain_context(group, dtype), quant=METHODS[name](None, EngineConfig()))


def assert_near(found: torch.Tensor, exact: torch.Tensor, name: str) -> None:
    off = (found.float() - exact.float()).norm() / exact.float().norm()
    assert 0 < off < ERROR[name]  # 0 would mean that nothing was rounded


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["int8", "int4"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["C++", "torch"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the C++ library, and as on a machine without it."""
    if request.param == "torch":
        monkeypatch.setattr(rtn, "load_library", lambda: None)
    return str(request.param)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("split", ["", "rows", "columns"])
def test_ranks_round_their_shard_of_fused_rows(
    name: str, split: str, transposed: bool, library: str
) -> None:
    gate = torch.randn(48, 144)
    up = torch.randn(80, 144)
    x = torch.randn(5, 144)
    tensors = [("a.gate.weight", gate), ("a.up.weight", up)]
    found = []
    for rank in range(2 if split else 1):
        weights = WeightMap()
        group = Whole(2 if split else 1, rank)
        slices = [Slice("gate", 48, "a.gate"), Slice("up", 80, "a.up")]
        layer = Linear(
            rounding(name, group), weights, "a", 144, slices, split=split, transposed=transposed
        )
        assert isinstance(layer.method._ops, TorchOps) == (library == "torch")
        weights.load(
            [(name, tensor.T.contiguous() if transposed else tensor) for name, tensor in tensors]
        )
        found.append(layer(x[:, group.own(144)] if split == "columns" else x))
    if split == "rows":
        halves = [(part[:, :24], part[:, 24:]) for part in found]
        found = [torch.cat([half[0] for half in halves] + [half[1] for half in halves], 1)]
    assert_near(torch.stack(found).sum(0), x @ torch.cat((gate, up)).T, name)


def test_weight_update_rounds_in_place(name: str, library: str) -> None:
    weights = WeightMap()
    x = torch.randn(3, 40)
    layer = Linear(rounding(name), weights, "a", 40, [Slice("q", 32, "a.q"), Slice("k", 16, "a.k")])
    weights.load([("a.q.weight", torch.randn(32, 40)), ("a.k.weight", torch.randn(16, 40))])
    before = layer(x)
    address = layer.weight.data_ptr()  # type: ignore[operator,union-attr]
    key = torch.randn(16, 40)
    weights.update([("a.k.weight", key)])
    assert layer.weight.data_ptr() == address  # type: ignore[operator,union-attr]
    assert torch.equal(layer(x)[:, :32], before[:, :32])
    assert_near(layer(x)[:, 32:], x @ key.T, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_tied_head_and_embedding_share_rounded_rows(
    name: str, dtype: torch.dtype, library: str
) -> None:
    weights = WeightMap()
    context = rounding(name, dtype=dtype)
    table = torch.randn(37, 24).to(dtype)
    embed = Embedding(37, 24, context, weights, "embed", is_head=True)
    head = Head(37, 24, context, weights, "head", tied_to=embed)
    weights.load([("embed.weight", table)])
    ids = torch.tensor([36, 0, 5, 5])
    x = torch.randn(4, 24).to(dtype)
    assert embed(ids).dtype is dtype
    assert_near(embed(ids), table[ids], name)
    assert_near(head(x), x.float() @ table.float().T, name)


def test_experts_approximate_reference_moe(name: str, library: str) -> None:
    class Layer(torch.nn.Module):
        gated = True
        bias = None
        ops = plain_context().ops
        activation = "silu"

    layer = Layer()
    method = METHODS[name](None, EngineConfig()).experts("x")
    assert isinstance(method, PackedExperts)
    method.use_plain_method(PlainExperts)  # type: ignore[attr-defined]
    method.create(layer, 4, 64, 40, torch.float32)
    gate_up = torch.randn(4, 128, 40)
    down = torch.randn(4, 40, 64)
    for matrix, weight in (("gate_up", gate_up), ("down", down)):
        for index in range(4):
            method._ops.pack(layer.get_parameter(matrix)[index], weight.shape[1], 0, weight[index])
    x = torch.randn(9, 40)
    shares = torch.rand(9, 2)
    chosen = torch.randint(0, 4, (9, 2))
    found = method.apply(layer, x, shares, chosen)
    assert_near(found, reference.moe(x, gate_up, down, shares, chosen, "silu"), name)


def test_integer_weights_and_quantized_checkpoints_are_rejected(name: str) -> None:
    weights = WeightMap()
    Linear(rounding(name), weights, "a", 8, [Slice("a", 8)])
    with pytest.raises(ModelError, match="is stored as int8, but config"):
        weights.load([("a.weight", torch.zeros(8, 8, dtype=torch.int8))])
    with pytest.raises(
        ModelError,
        match=f"already quantized as '{name}'.* Use the checkpoint that it was made from",
    ):
        METHODS[name]({"quant_method": name}, EngineConfig())


def test_experts_int8_leaves_linear_layers_plain() -> None:
    method = rtn.ExpertsInt8(None, EngineConfig())
    assert isinstance(method.experts("x"), PackedExperts)
    assert type(method.linear("x")) is PlainLinear
    assert not hasattr(method, "head")
    with pytest.raises(ModelError, match="Use the checkpoint that it was made from"):
        rtn.ExpertsInt8({"quant_method": "experts_int8"}, EngineConfig())
