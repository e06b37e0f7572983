"""State-space ops: chunked forms equal the token loop, whole and in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core.models.ops import reference, torch_impls
from core.testing.no_readback import no_readback


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape)))


def heads(n: int, length: int) -> list[torch.Tensor]:
    """Arguments of `ssd_scan` before the state."""
    step = draw(n, length, 6).exp()
    decay = -draw(6).exp()
    return [
        draw(n, length, 6, 4),
        step,
        decay,
        draw(n, length, 2, 8, seed=1),
        draw(n, length, 2, 8, seed=2),
    ]


def channels(n: int, length: int) -> list[torch.Tensor]:
    """Arguments of `selective_scan` before the state."""
    step = draw(n, length, 10, seed=3).exp()
    decay = -draw(10, 8).exp()
    return [
        draw(n, length, 10),
        step,
        decay,
        draw(n, length, 8, seed=1),
        draw(n, length, 8, seed=2),
    ]


SCANS: dict[str, tuple[Any, Any, Any, tuple[int, ...]]] = {
    "heads": (torch_impls.ssd_scan, reference.ssd_scan, heads, (6, 4, 8)),
    "channels": (torch_impls.selective_scan, reference.selective_scan, channels, (10, 8)),
}


@pytest.mark.parametrize("length", [1, 2, 7, 64, 65, 300])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("kind", SCANS)
def test_chunked_scan_equals_token_loop(kind: str, n: int, length: int) -> None:
    fast, slow, arguments, shape = SCANS[kind]
    first = draw(n, *shape, seed=7)
    stored = first.clone()
    with no_readback():
        found = fast(*arguments(n, length), first)
    for ours, theirs in zip(found, slow(*arguments(n, length), first), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)
    assert torch.equal(first, stored), "a state that others may read was changed"


@pytest.mark.parametrize("cut", [1, 30, 63, 69])
@pytest.mark.parametrize("kind", SCANS)
def test_scan_is_equal_in_pieces(kind: str, cut: int) -> None:
    fast, _, arguments, shape = SCANS[kind]
    given = arguments(2, 70)
    first = torch.zeros(2, *shape)
    whole, last = fast(*given, first)
    cut_at = [slice(0, cut), slice(cut, None)]
    one, middle = fast(*(_part(x, cut_at[0]) for x in given), first)
    other, state = fast(*(_part(x, cut_at[1]) for x in given), middle)
    torch.testing.assert_close(torch.cat((one, other), 1), whole, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(state, last, atol=2e-4, rtol=2e-4)


def _part(x: torch.Tensor, tokens: slice) -> torch.Tensor:
    return x[:, tokens] if x.shape[:2] == (2, 70) else x


@pytest.mark.parametrize("kind", SCANS)
def test_scan_with_large_steps_is_finite(kind: str) -> None:
    fast, _, arguments, shape = SCANS[kind]
    x, step, *rest = arguments(1, 70)
    out, state = fast(x, step * 1e3, *rest, draw(1, *shape))
    assert out.isfinite().all()
    assert state.isfinite().all()


@pytest.mark.parametrize("bias", [None, draw(6)])
@pytest.mark.parametrize("activate", [True, False])
@pytest.mark.parametrize("dilation", [1, 2])
def test_causal_conv_is_equal_in_pieces(
    dilation: int, activate: bool, bias: torch.Tensor | None
) -> None:
    x = draw(2, 9, 6)
    weight = draw(4, 6)
    before = 3 * dilation
    how = bias, activate, dilation
    whole, last = reference.causal_conv(x, torch.zeros(2, before, 6), weight, *how)
    expected = torch.nn.functional.conv1d(
        x.transpose(1, 2), weight.T[:, None], bias, padding=before, dilation=dilation, groups=6
    )
    expected = expected[..., :9].transpose(1, 2)
    torch.testing.assert_close(whole, torch.nn.functional.silu(expected) if activate else expected)
    state = torch.zeros(2, before, 6)
    pieces = []
    for start, end in ((0, 1), (1, 3), (3, 9)):
        piece, state = reference.causal_conv(x[:, start:end], state, weight, *how)
        pieces.append(piece)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    assert torch.equal(state, last)
    assert torch.equal(last, x[:, -before:])
