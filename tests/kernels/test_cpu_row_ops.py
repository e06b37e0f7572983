"""C++ row operations match the reference for all shapes, strides, dtypes and instruction sets."""

from __future__ import annotations

import pytest
import torch
from core_kernels.library import load_library
from core_kernels.row_ops import RowOps

from builtin_plugins.op_impls.cpu import ops
from core.models.ops import reference
from core.models.ops.experts import ExpertGroups

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(0, 8), (1, 1), (1, 16), (3, 7), (5, 33), (2, 3, 17), (4, 128), (40, 1030), (3, 0, 16)]
TOLERANCE = {torch.float32: (1e-6, 1e-6), torch.bfloat16: (1e-2, 1e-3), torch.float16: (2e-3, 1e-4)}

pytestmark = pytest.mark.skipif(ops.KERNELS is None, reason="no C++ library on this machine")


@pytest.fixture
def isa(vector_isa, monkeypatch):
    """Run the ops that are registered with this instruction set, whatever they chose when they were
    loaded.
    """
    monkeypatch.setattr(ops, "KERNELS", RowOps(load_library()))
    return vector_isa


def assert_same(actual, expected):
    assert actual.dtype is expected.dtype
    rtol, atol = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def in_wider_rows(x):
    """Return x as a view into rows that are five elements longer."""
    return torch.cat((x, torch.ones(*x.shape[:-1], 5, dtype=x.dtype)), -1)[..., : x.shape[-1]]


def without_the_reference(monkeypatch):
    """MakeOps the reference unusable, so that the op under test must do the work itself."""

    def refuse(*_):
        raise AssertionError("the reference was used")

    for name in ("rms_norm", "add_rms_norm", "silu_and_mul", "gelu_tanh_and_mul", "rotary"):
        monkeypatch.setattr(ops.reference, name, refuse)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm_matches_reference(isa, shape, dtype, offset, monkeypatch):
    weight = torch.randn(shape[-1]).to(dtype)
    dense = (torch.randn(shape) * 3).to(dtype)
    cases = [
        (x, reference.rms_norm(x, weight, 1e-6, offset)) for x in (dense, in_wider_rows(dense))
    ]
    without_the_reference(monkeypatch)
    for x, expected in cases:
        assert_same(ops.rms_norm(x, weight, 1e-6, offset), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [s for s in SHAPES if len(s) == 2], ids=str)
def test_add_rms_norm_matches_reference(isa, shape, dtype, monkeypatch):
    weight = torch.randn(shape[-1]).to(dtype)
    x = torch.randn(shape).to(dtype)
    residual = torch.randn(shape).to(dtype)
    expected = reference.add_rms_norm(x, residual, weight, 1e-5)
    without_the_reference(monkeypatch)
    for a, b in ((x.clone(), residual.clone()), (in_wider_rows(x), in_wider_rows(residual))):
        normed, total = ops.add_rms_norm(a, b, weight, 1e-5)
        assert_same(normed, expected[0])
        assert torch.equal(total, expected[1])


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_tanh_and_mul"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(0, 8), (1, 2), (3, 14), (5, 66), (40, 2060)], ids=str)
def test_gated_activations_match_reference(isa, name, shape, dtype, monkeypatch):
    dense = (torch.randn(shape) * 4).to(dtype)
    # In float32 the reference's own tanh gelu loses digits to cancellation, so the oracle is its
    # float64.
    expected = getattr(reference, name)(dense.double() if dtype is torch.float32 else dense).to(
        dtype
    )
    without_the_reference(monkeypatch)
    assert_same(getattr(ops, name)(dense), expected)


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_tanh_and_mul"])
def test_activations_are_accurate_at_extremes(isa, name):
    gate = torch.cat(
        (torch.linspace(-30, 30, 4001), torch.tensor([-1e4, -200.0, 200.0, 1e4, 0.0, torch.inf]))
    )
    x = torch.stack((gate, torch.ones_like(gate)), 1)
    exact = getattr(reference, name)(x.double()).float()
    torch.testing.assert_close(getattr(ops, name)(x), exact, rtol=1e-6, atol=1e-7)
    assert getattr(ops, name)(torch.tensor([[torch.nan, 1.0]])).isnan().all()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "size", "rotary_size"),
    [
        (0, 2, 1, 8, 8),
        (1, 1, 1, 2, 2),
        (3, 4, 2, 16, 6),
        (7, 3, 1, 64, 64),
        (5, 2, 2, 40, 38),
        (300, 8, 2, 128, 128),
    ],
)
def test_rotary_matches_reference(
    isa, tokens, heads, kv_heads, size, rotary_size, dtype, interleaved, monkeypatch
):
    fused = torch.randn(tokens, heads + 2 * kv_heads, size).to(
        dtype
    )  # query and key are views of one product
    query = fused[:, :heads]
    key = fused[:, heads : heads + kv_heads]
    angles = torch.rand(50, rotary_size // 2) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
    positions = torch.randint(0, 50, (tokens,))
    expected = reference.rotary(query, key, cos_sin, positions, interleaved)
    value = fused[:, heads + kv_heads :].clone()
    without_the_reference(monkeypatch)
    turned = ops.rotary(query, key, cos_sin, positions, interleaved)
    for actual, reference_row in zip(turned, expected, strict=True):
        assert_same(actual, reference_row)
    assert torch.equal(fused[:, heads + kv_heads :], value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_rounding_matches_torch(isa, dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    every = torch.where(every.isnan(), torch.zeros_like(every), every)[None]
    other = torch.roll(every, 12345)
    zeros = torch.zeros_like(every)
    weight = torch.ones(every.shape[1], dtype=dtype)
    _, total = ops.add_rms_norm(every.clone(), zeros.clone(), weight, 1e-6)
    assert torch.equal(total, every)
    _, total = ops.add_rms_norm(every.clone(), other.clone(), weight, 1e-6)
    assert torch.equal(total.nan_to_num(7), (every + other).nan_to_num(7))


def test_rows_are_bitwise_batch_invariant(isa):
    x = torch.randn(70, 1000)
    weight = torch.randn(1000)
    together = ops.rms_norm(x, weight, 1e-6), ops.silu_and_mul(x)
    for row in (0, 33, 69):
        assert torch.equal(together[0][row], ops.rms_norm(x[row : row + 1], weight, 1e-6)[0])
        assert torch.equal(together[1][row], ops.silu_and_mul(x[row : row + 1])[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sigmoid_matches_torch_and_depends_on_the_number_only(isa, dtype, monkeypatch):
    bounds = torch.tensor([0.0, -0.0, 1e-38, -100.0, 100.0, -torch.inf, torch.inf])
    x = torch.cat((bounds, torch.randn(69 * 1001) * 5)).to(dtype)
    monkeypatch.setattr(ops.reference, "sigmoid", None)
    together = ops.sigmoid(x)
    assert_same(together, torch.sigmoid(x.double()).to(dtype))
    assert ops.sigmoid(torch.tensor([torch.nan], dtype=dtype)).isnan().all()
    for begin, end in ((0, 1), (5, 22), (1000, 3003), (len(x) - 1, len(x))):
        assert torch.equal(ops.sigmoid(x[begin:end]), together[begin:end])


@pytest.mark.parametrize("renormalize", [True, False])
def test_experts_of_a_token_depend_on_its_logits_only(isa, renormalize):
    logits = torch.randn(69, 43) * 3
    given = torch.randn(43), "sigmoid", 4, ExpertGroups(), renormalize, 2.5
    shares, experts = ops.select_experts(logits, *given)
    expected = reference.select_experts(logits, *given)
    torch.testing.assert_close(shares, expected[0])
    assert torch.equal(experts, expected[1])
    for begin, end in ((0, 1), (5, 22), (68, 69)):
        alone = ops.select_experts(logits[begin:end], *given)
        assert torch.equal(alone[0], shares[begin:end])
        assert torch.equal(alone[1], experts[begin:end])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_unsupported_inputs_use_the_reference(dtype):
    x = torch.randn(4, 6, dtype=dtype)
    strided = x.t().contiguous().t()
    weight = torch.randn(6, dtype=torch.float64)
    assert torch.equal(
        ops.rms_norm(strided, weight, 1e-6), reference.rms_norm(strided, weight, 1e-6)
    )
    assert torch.equal(ops.silu_and_mul(strided), reference.silu_and_mul(strided))
    normed, _ = ops.add_rms_norm(strided.clone(), strided.clone(), weight, 1e-6)
    assert torch.equal(normed, reference.add_rms_norm(strided, strided, weight, 1e-6)[0])
