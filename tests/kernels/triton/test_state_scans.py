"""Layers that keep a state, in Triton, are their references, through the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from core_kernels.triton import chunked_scan, sequential_scan

from builtin_plugins.op_impls.triton import ops
from core.models.ops import reference

STRETCHES = ((0, 1), (1, 1), (2, 5))


def assert_same(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize(("n", "length"), STRETCHES)
def test_causal_conv(n: int, length: int, dilation: int, dtype: torch.dtype) -> None:
    x = torch.randn(n, length, 24).to(dtype)[..., :9]
    state = torch.randn(n, 3 * dilation, 9).to(dtype)
    for bias, activate in ((torch.randn(9).to(dtype), True), (None, False)):
        given = x, state, torch.randn(4, 9).to(dtype), bias, activate, dilation
        assert_same(
            sequential_scan.causal_conv(*given),
            reference.causal_conv(*given),
            1e-5 if dtype is torch.float32 else 3e-2,
        )


@pytest.mark.parametrize(("n", "length"), STRETCHES)
def test_selective_scan(n: int, length: int) -> None:
    x = torch.randn(n, length, 60)[..., :33]
    step = torch.rand(n, length, 33)
    write = torch.randn(n, length, 5)
    read = torch.randn(n, length, 5)
    given = x, step, -torch.rand(33, 5), write, read, torch.randn(n, 33, 5)
    assert_same(sequential_scan.selective_scan(*given), reference.selective_scan(*given))


@pytest.mark.parametrize(("n", "length"), STRETCHES)
def test_ssd_scan(n: int, length: int) -> None:
    write, read = (torch.randn(n, length, 2, 12)[..., :6] for _ in range(2))
    given = (
        torch.randn(n, length, 4, 3),
        torch.rand(n, length, 4),
        -torch.rand(4),
        write,
        read,
        torch.randn(n, 4, 3, 6),
    )
    assert_same(sequential_scan.ssd_scan(*given), reference.ssd_scan(*given))


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize(("n", "length"), STRETCHES)
@pytest.mark.parametrize("query_scale", [None, 0.4])
def test_delta_scan(n: int, length: int, by_channel: bool, query_scale: float | None) -> None:
    query = torch.randn(n, length, 2, 6)
    key = torch.randn(n, length, 2, 6) * 0.3
    decay = -torch.rand(n, length, 4, 6) if by_channel else -torch.rand(n, length, 4)
    given = (
        query,
        key,
        torch.randn(n, length, 4, 5),
        decay,
        torch.rand(n, length, 4),
        torch.randn(n, 4, 6, 5),
        query_scale,
    )
    assert_same(sequential_scan.delta_scan(*given), reference.delta_scan(*given))


def test_chunked_ssd_matches_sequential_scan() -> None:
    length = 70
    write, read = (torch.randn(1, length, 2, 12)[..., :6] for _ in range(2))
    step = torch.rand(1, length, 4) * 3
    state = torch.randn(1, 4, 5, 6)
    given = torch.randn(1, length, 4, 5), step, -torch.rand(4), write, read, state
    assert_same(chunked_scan.ssd_scan(*given), reference.ssd_scan(*given), 1e-4)
    assert_same(ops.ssd_scan(*given), chunked_scan.ssd_scan(*given), 0.0)


@pytest.mark.parametrize("query_scale", [None, 0.4])
def test_chunked_delta_rule_matches_sequential_scan(query_scale: float | None) -> None:
    length = 20
    query = torch.randn(1, length, 1, 6)
    key = torch.randn(1, length, 1, 12)[..., :6]
    if query_scale is None:
        key = key / key.norm(dim=-1, keepdim=True)
    value = torch.randn(1, length, 2, 5)
    states = torch.randn(1, 2, 6, 5), query_scale
    given = query, key, value, -torch.rand(1, length, 2), torch.rand(1, length, 2), *states
    assert_same(chunked_scan.delta_scan(*given), reference.delta_scan(*given), 1e-4)
    assert_same(ops.delta_scan(*given), chunked_scan.delta_scan(*given), 0.0)


def test_delta_rule_with_equal_keys_and_channel_decay() -> None:
    key = torch.ones(1, 33, 1, 4) / 2
    given = (
        torch.randn(1, 33, 1, 4),
        key,
        torch.randn(1, 33, 1, 3),
        torch.zeros(1, 33, 1),
        torch.ones(1, 33, 1),
    )
    state = torch.randn(1, 1, 4, 3)
    assert_same(chunked_scan.delta_scan(*given, state), reference.delta_scan(*given, state), 1e-4)
    by_channel = *given[:3], -torch.rand(1, 33, 1, 4), given[4], state
    assert_same(ops.delta_scan(*by_channel), reference.delta_scan(*by_channel), 1e-4)


@pytest.mark.slow
def test_real_model_scans() -> None:
    write = torch.randn(1, 300, 1, 128)
    read = torch.randn(1, 300, 1, 128)
    given = torch.randn(1, 300, 2, 64), torch.rand(1, 300, 2) / 9, -torch.rand(2) * 9, write, read
    state = torch.zeros(1, 2, 64, 128)
    assert_same(chunked_scan.ssd_scan(*given, state), reference.ssd_scan(*given, state), 1e-3)
    key = torch.nn.functional.normalize(torch.randn(1, 300, 1, 128), dim=-1)
    given = (
        key.flip(1),
        key,
        torch.randn(1, 300, 2, 128),
        -torch.rand(1, 300, 2) / 9,
        torch.rand(1, 300, 2),
    )
    state = torch.zeros(1, 2, 128, 128)
    assert_same(chunked_scan.delta_scan(*given, state), reference.delta_scan(*given, state), 1e-3)
