"""Experts of a mixture in Triton are the reference's, through the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from core_kernels.triton import routing
from core_kernels.triton.moe import moe

from core.models.ops import reference
from core.models.ops.torch_impls import grouped_moe


@pytest.mark.parametrize(
    ("activation", "biased"),
    [
        *(
            (each, False)
            for each in ("silu", "gelu", "gelu_tanh", "relu", "swiglu_clamped", "relu2_alone")
        ),
        ("silu", True),
        ("relu2_alone", True),
    ],
)
def test_activations_with_bias_and_without(activation: str, biased: bool) -> None:
    torch.manual_seed(0)
    num_experts = 5
    hidden = 20
    width = 9
    high = width if activation == "relu2_alone" else 2 * width
    gate_up = torch.randn(num_experts, high, hidden) * 0.2
    down = torch.randn(num_experts, hidden, width) * 0.3
    shares, experts = torch.rand(7, num_experts).topk(3, -1)
    bias = torch.randn(num_experts, high) if biased else None
    given = torch.randn(7, hidden), gate_up, down, shares, experts, activation, bias
    torch.testing.assert_close(moe(*given), reference.moe(*given), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_tokens", [0, 1, 100])
def test_moe_with_any_number_of_tokens_per_expert(num_tokens: int) -> None:
    torch.manual_seed(1)
    x = torch.randn(num_tokens, 2 * 12)[:, :12]
    gate_up = torch.randn(3, 8, 12) * 0.3
    down = torch.randn(3, 12, 4) * 0.3
    shares = torch.rand(num_tokens, 1)
    experts = torch.full((num_tokens, 1), 2)
    given = x, gate_up, down, shares, experts
    torch.testing.assert_close(moe(*given), reference.moe(*given), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("implementation", [moe, grouped_moe])
@pytest.mark.parametrize("biased", [False, True])
def test_experts_of_other_ranks_are_not_computed(implementation: Any, biased: bool) -> None:
    torch.manual_seed(3)
    gate_up = torch.randn(3, 16, 12) * 0.3
    down = torch.randn(3, 12, 8) * 0.3
    bias = torch.randn(3, 16) if biased else None
    experts = torch.tensor([[0, 3], [3, 3], [1, 2]])
    shares = torch.rand(3, 2).masked_fill(experts == 3, 0.0)
    given = torch.randn(3, 12), gate_up, down, shares, experts, "silu", bias
    found = implementation(*given)
    torch.testing.assert_close(found, reference.moe(*given), atol=1e-5, rtol=1e-5)
    assert not found[1].any()


@pytest.mark.parametrize("count", [1, 16, 37, 200])
@pytest.mark.parametrize("num_experts", [1, 5, 40])
def test_routing_in_one_launch_equals_a_stable_sort(count: int, num_experts: int) -> None:
    torch.manual_seed(count)
    chosen = torch.randint(0, num_experts, (count,))
    for experts in (
        chosen,
        torch.full_like(chosen, num_experts - 1),
        torch.where(chosen % 2 == 0, chosen, num_experts),  # of other ranks
        chosen // 2 * 2 % num_experts,
    ):
        found = routing.route(experts, num_experts, 16)
        for ours, theirs in zip(found, routing._route_many(experts, num_experts, 16), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_real_model_experts() -> None:
    torch.manual_seed(2)
    gate_up = torch.randn(8, 2 * 768, 2048) * 0.02
    down = torch.randn(8, 2048, 768) * 0.02
    shares, experts = torch.rand(9, 8).topk(2, -1)
    given = (
        (torch.randn(9, 2048) * 0.5).bfloat16(),
        gate_up.bfloat16(),
        down.bfloat16(),
        shares,
        experts,
    )
    torch.testing.assert_close(moe(*given), reference.moe(*given), atol=2e-2, rtol=2e-2)
