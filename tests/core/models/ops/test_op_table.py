"""Op implementations equal the reference; binding chooses by facts; no host sync."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.errors import PluginError
from core.models.ops import reference
from core.models.ops.table import choose_ops
from core.models.ops.torch_impls import grouped_moe
from core.plugin.entry import Entry


class NoReadBack(TorchDispatchMode):
    """Raises when a device value would be read by the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._opname not in ("_local_scalar_dense", "nonzero", "_to_cpu"), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("num_tokens", "width"), [(0, 24), (1, 24), (3, 7), (17, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", sorted(reference.GATED))
def test_grouped_experts_equal_the_reference(
    num_tokens: int, width: int, dtype: torch.dtype, activation: str
) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    experts = 5
    top_k = 2
    hidden = 16

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype) * 0.3

    x = draw(num_tokens, hidden)
    gate_up = draw(experts, 2 * width, hidden)
    down = draw(experts, hidden, width)
    scores = draw(num_tokens, experts).float().softmax(-1)
    shares, chosen = scores.topk(top_k, -1)
    chosen = chosen.clamp(
        max=3
    )  # one expert gets no token, another may get two choices of one token
    with NoReadBack():
        found = grouped_moe(x, gate_up, down, shares, chosen, activation)
    expected = reference.moe(x, gate_up, down, shares, chosen, activation)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def test_grouped_moe_is_batch_invariant() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 8, generator=generator)
    gate_up = torch.randn(4, 16, 8, generator=generator)
    down = torch.randn(4, 8, 8, generator=generator)
    shares, chosen = torch.randn(9, 4, generator=generator).softmax(-1).topk(2, -1)
    whole = grouped_moe(x, gate_up, down, shares, chosen)
    alone = torch.cat(
        [
            grouped_moe(x[i : i + 1], gate_up, down, shares[i : i + 1], chosen[i : i + 1])
            for i in range(9)
        ]
    )
    torch.testing.assert_close(whole, alone, atol=1e-5, rtol=1e-5)


def test_rotary_rotates_pairs_and_passes_the_rest() -> None:
    query = torch.arange(12.0).view(1, 2, 6)
    angle = torch.tensor([0.3, 0.7])
    table = torch.cat((angle.cos(), angle.sin()))[None]
    halves, _ = reference.rotary(query, query, table, torch.tensor([0]))
    pairs, _ = reference.rotary(query, query, table, torch.tensor([0]), interleaved=True)
    for out, (a, b) in ((halves, (0, 2)), (pairs, (0, 1))):
        expected = query[0, 0, a] * angle[0].cos() - query[0, 0, b] * angle[0].sin()
        torch.testing.assert_close(out[0, 0, a], expected)
        assert torch.equal(out[..., 4:], query[..., 4:])
    assert not torch.equal(halves, pairs)


@pytest.mark.parametrize("shape", [(0, 8), (1, 8), (3, 5, 7)])
def test_add_rms_norm_is_the_norm_of_the_sum(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator)
    residual = torch.randn(shape, generator=generator)
    weight = torch.randn(shape[-1], generator=generator)
    out, total = reference.add_rms_norm(x, residual, weight, 1e-6, 1.0)
    expected = torch.nn.functional.rms_norm(x + residual, (shape[-1],), weight + 1.0, 1e-6)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(total, x + residual)


# --- binding --------------------------------------------------------------------------------------


@dataclass
class Ranked:
    """The part of a registry that binding uses."""

    entries: list[tuple[Entry, str]]

    def rank(self, kind: str, facts: Any) -> list[Any]:
        @dataclass
        class Found:
            registered: Any
            reason: str

        @dataclass
        class Registered:
            entry: Entry
            plugin: Any

        @dataclass
        class Plugin:
            name: str = "acme"

        return [Found(Registered(entry, Plugin()), reason) for entry, reason in self.entries]

    def load(self, registered: Any) -> Any:
        return registered.entry.target


def test_op_table_binds_first_matching_implementation() -> None:
    def slow(x: torch.Tensor) -> torch.Tensor:
        return x

    def fast(x: torch.Tensor) -> torch.Tensor:
        return x

    registry: Any = Ranked(
        [(Entry("silu/cuda", fast, "x"), "another device"), (Entry("silu/cpu", slow, "x"), "")]
    )
    table = choose_ops(registry, {"device": "cpu"})
    assert table.silu is slow
    assert table.gelu is reference.gelu


def test_implementation_of_unknown_op_is_rejected() -> None:
    registry: Any = Ranked([(Entry("rms_nrm/cpu", reference.silu, "x"), "")])
    with pytest.raises(
        PluginError, match=r"plugin 'acme' .* no op 'rms_nrm'; did you mean 'rms_norm'"
    ):
        choose_ops(registry, {})
