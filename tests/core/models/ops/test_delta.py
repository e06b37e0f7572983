"""The chunked delta rule and linear recurrence equal their token loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core.models.ops import reference, torch_impls


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


@pytest.mark.parametrize("by_channel", [False, True], ids=["by head", "by channel"])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 64, 65, 150])
def test_chunked_delta_scan_equals_token_loop(length: int, by_channel: bool) -> None:
    n = 2
    key_heads = 2
    heads = 6
    key_size = 8
    value_size = 5
    query = draw(n, length, key_heads, key_size)
    key = draw(n, length, key_heads, key_size, seed=1)
    key = key / key.norm(dim=-1, keepdim=True)
    value = draw(n, length, heads, value_size)
    write = draw(n, length, heads).sigmoid() * 2
    decay = -draw(n, length, heads, *([key_size] if by_channel else []), seed=2).exp() * 0.3
    inputs = (query, key, value, decay, write, draw(n, heads, key_size, value_size))
    for found, expected in zip(
        torch_impls.delta_scan(*inputs), reference.delta_scan(*inputs), strict=True
    ):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("scan", [reference.delta_scan, torch_impls.delta_scan])
def test_query_scale_normalises_queries_and_keys(scan: Any) -> None:
    query = draw(2, 20, 2, 8)
    key = draw(2, 20, 2, 8, seed=1)
    write = draw(2, 20, 4).sigmoid()
    rest = draw(2, 20, 4, 5), -draw(2, 20, 4, seed=2).exp(), write, draw(2, 4, 8, 5)
    lengths = [(part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (query, key)]
    expected = scan(query / lengths[0] * 0.3, key / lengths[1], *rest)
    for found, truth in zip(scan(query, key, *rest, 0.3), expected, strict=True):
        torch.testing.assert_close(found, truth, atol=1e-5, rtol=1e-5)


def test_delta_scan_with_full_decay_is_finite() -> None:
    n = 1
    length = 64
    heads = 2
    size = 4
    query, key, value = (draw(n, length, heads, size, seed=seed) for seed in range(3))
    decay = torch.full((n, length, heads), -80.0)
    write = torch.ones(n, length, heads)
    inputs = (
        query,
        key / key.norm(dim=-1, keepdim=True),
        value,
        decay,
        write,
        draw(n, heads, size, size),
    )
    for found, expected in zip(
        torch_impls.delta_scan(*inputs), reference.delta_scan(*inputs), strict=True
    ):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 3, 16, 61])
def test_linear_recurrence_equals_token_loop(length: int) -> None:
    inputs = draw(3, length, 7), -draw(3, length, 7, seed=1).exp() * 0.2, draw(3, 7)
    for found, expected in zip(
        torch_impls.linear_recurrence(*inputs), reference.linear_recurrence(*inputs), strict=True
    ):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_linear_recurrence_is_equal_in_pieces() -> None:
    query = draw(1, 90, 2, 8)
    key = draw(1, 90, 2, 8, seed=1)
    key = key / key.norm(dim=-1, keepdim=True)
    value = draw(1, 90, 2, 8, seed=2)
    decay = -draw(1, 90, 2).exp()
    write = draw(1, 90, 2, seed=3).sigmoid()
    whole, last = torch_impls.delta_scan(query, key, value, decay, write, torch.zeros(1, 2, 8, 8))
    state = torch.zeros(1, 2, 8, 8)
    pieces = []
    for here in (slice(0, 1), slice(1, 30), slice(30, 90)):
        parts = [part[:, here] for part in (query, key, value, decay, write)]
        out, state = torch_impls.delta_scan(*[*parts, state])
        pieces.append(out)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state, last, atol=1e-5, rtol=1e-5)
