"""Triton's norms, activations, rotary positions and copies are their references, through the
interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from core_kernels.triton.block_copy import BlockCopier, copy_blocks, write_kv

from builtin_plugins.op_impls.triton import ops, plugin
from core.api import Entry
from core.models.ops import reference
from core.testing.conformance import Subject
from core.testing.conformance.op_impls import check_equals_the_reference

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
SHAPES = ((0, 8), (1, 1), (3, 33), (2, 5, 16), (3, 0, 4), (2, 2, 2, 6))


@pytest.fixture(params=TOLERANCE, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    torch.manual_seed(0)
    made: torch.dtype = request.param
    return made


def rows(dtype: torch.dtype, times: int = 1) -> Iterator[torch.Tensor]:
    """Yield tensors of every shape, with a multiple of the last dimension, and some with
    gaps between rows.
    """
    for *leading, width in SHAPES:
        yield torch.randn(*leading, times * width).to(dtype)
    yield torch.randn(5, times * 9 + 3).to(dtype)[:, : times * 9]
    yield torch.randn(4, 40).to(dtype)[:, : times * 12].unflatten(1, (3, times * 4)).transpose(0, 1)


def assert_same(found: Any, expected: Any) -> None:
    assert found.dtype is expected.dtype
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(dtype: torch.dtype, offset: float) -> None:
    for x in rows(dtype):
        weight = torch.randn(x.shape[-1]).to(dtype)
        assert_same(
            ops.rms_norm(x, weight, 1e-6, offset), reference.rms_norm(x, weight, 1e-6, offset)
        )


def test_add_rms_norm(dtype: torch.dtype) -> None:
    for x in rows(dtype):
        weight = torch.randn(x.shape[-1]).to(dtype)
        residual = x.flip(0) * 3
        expected = reference.add_rms_norm(x, residual, weight, 1e-6)
        found = ops.add_rms_norm(x, residual, weight, 1e-6)
        for output, part in zip(found, expected, strict=True):
            assert_same(output, part)


@pytest.mark.parametrize(("weighted", "shifted"), [(True, True), (True, False), (False, False)])
def test_layer_norm(dtype: torch.dtype, weighted: bool, shifted: bool) -> None:
    for x in rows(dtype):
        if x.shape[-1] > 1:  # nothing is left of a row of one number but its noise
            weight, bias = (
                torch.randn(x.shape[-1]).to(dtype) if has else None for has in (weighted, shifted)
            )
            assert_same(
                ops.layer_norm(x, weight, bias, 1e-5), reference.layer_norm(x, weight, bias, 1e-5)
            )


@pytest.mark.parametrize("shifted", [True, False])
def test_add_layer_norm(dtype: torch.dtype, shifted: bool) -> None:
    for x in rows(dtype):
        if x.shape[-1] > 1:  # as above
            weight, bias = torch.randn(2, x.shape[-1]).to(dtype)
            given = x.flip(0) * 3, weight, bias if shifted else None, 1e-5
            expected = reference.add_layer_norm(x, *given)
            for found, part in zip(ops.add_layer_norm(x, *given), expected, strict=True):
                assert_same(found, part)


@pytest.mark.parametrize(
    "op", ["silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul", "relu_and_mul"]
)
def test_gated_activations(dtype: torch.dtype, op: str) -> None:
    for x in rows(dtype, times=2):
        assert_same(getattr(ops, op)(x), getattr(reference, op)(x))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("count", "heads", "kv_heads", "size", "turning"),
    [(0, 2, 1, 4, 4), (3, 9, 0, 6, 2), (5, 3, 2, 8, 8)],
)
def test_rotary(
    dtype: torch.dtype,
    interleaved: bool,
    count: int,
    heads: int,
    kv_heads: int,
    size: int,
    turning: int,
) -> None:
    fused = torch.randn(count, (heads + kv_heads) * size + 3).to(dtype)
    query = fused[:, : heads * size].unflatten(1, (heads, size))
    key = fused[:, heads * size : (heads + kv_heads) * size].unflatten(1, (kv_heads, size))
    table = torch.randn(40, turning)
    positions = torch.arange(count) * 7
    expected = reference.rotary(query.clone(), key.clone(), table, positions, interleaved)
    found = ops.rotary(query, key, table, positions, interleaved)
    for output, part in zip(found, expected, strict=True):
        assert_same(output, part)


def test_kv_write_follows_the_slot_mapping(dtype: torch.dtype) -> None:
    fused = torch.randn(3, 40).to(dtype)
    key = fused[:, 5:15].unflatten(1, (2, 5))
    value = fused[:, 20:30].unflatten(1, (2, 5))
    cache = torch.full((4, 2, 2, 2, 5), 7.0, dtype=dtype)
    slots = torch.tensor([6, 1, 3])
    write_kv(key, value, cache, slots)
    for token, slot in enumerate(slots.tolist()):
        assert torch.equal(cache[slot // 2, 0, slot % 2], key[token])
        assert torch.equal(cache[slot // 2, 1, slot % 2], value[token])
    assert (cache == 7.0).sum() == cache.numel() - 60
    write_kv(key[:0], value[:0], cache, slots[:0])


@pytest.mark.parametrize("width", [1, 4096, 4099])
def test_copy_blocks_copies_whole_blocks(width: int) -> None:
    source = torch.randint(0, 255, (3, width), dtype=torch.uint8)
    target = torch.zeros(4, width, dtype=torch.uint8)
    copy_blocks(source, target, torch.tensor([[2, 0], [1, 3]]))
    assert torch.equal(target, torch.stack([source[2], target[1], target[2], source[1]]))
    assert not target[1:3].any()
    copy_blocks(source, target, torch.zeros(0, 2, dtype=torch.int64))


@pytest.mark.parametrize("widths", [(8,), (24, 16 * 1024, 8), (3, 1030, 16)])
def test_block_gather_and_scatter_round_trip(widths: tuple[int, ...]) -> None:
    def drawn() -> list[torch.Tensor]:
        whole = [torch.randint(0, 255, (5, width + 16), dtype=torch.uint8) for width in widths]
        return [memory[:, :width] for memory, width in zip(whole, widths, strict=True)]

    caches = drawn()
    blocks = torch.tensor([3, 0])
    packed = BlockCopier(caches)
    rows = packed.gather(blocks)
    assert torch.equal(rows, torch.cat([cache[blocks] for cache in caches], 1))
    others = [cache.clone() for cache in caches]
    packed.scatter(torch.tensor([1, 4]), rows)
    for cache, before in zip(caches, others, strict=True):
        assert torch.equal(cache[[1, 4]], before[[3, 0]])
        assert torch.equal(cache[[0, 2, 3]], before[[0, 2, 3]])
    assert packed.gather(blocks[:0]).shape == (0, sum(widths))


def test_block_copy_follows_moved_caches() -> None:
    cache = torch.arange(32, dtype=torch.uint8).view(4, 8)
    packed = BlockCopier([cache])
    packed.gather(torch.tensor([0]))
    cache.set_(torch.full((4, 8), 7, dtype=torch.uint8))  # type: ignore[call-overload]
    assert (packed.gather(torch.tensor([2])) == 7).all()


@pytest.mark.slow
@pytest.mark.parametrize("op", plugin.OPS)
def test_conformance_suite_passes_in_the_interpreter(op: str) -> None:
    entry = Entry(f"{op}/triton", getattr(ops, op), "without what it needs of a device")
    check_equals_the_reference(Subject("op_impls", entry, getattr(ops, op)))


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "width"), [(1, 4096), (17, 12288), (300, 1024)])
def test_real_model_rows(tokens: int, width: int) -> None:
    x = torch.randn(tokens, width).to(torch.bfloat16)
    weight = torch.randn(width).to(torch.bfloat16)
    assert_same(ops.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6))
    assert_same(ops.silu_and_mul(x), reference.silu_and_mul(x))
