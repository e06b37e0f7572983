"""The experts of a mixture by grouped products: tokens are sorted by expert on the device, nothing
is read back.
"""

from __future__ import annotations

import torch

from core.models.ops import reference


def grouped_moe(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    activation: str = "silu",
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what `reference.moe` returns, computing only the chosen experts of each token.

    What the grouped product does not take (no token, rows that are no multiple of 16 bytes, other
    dtypes than bfloat16 off the CPU) goes to the reference.
    """
    num_tokens, top_k = experts.shape
    aligned = all(size * x.element_size() % 16 == 0 for size in (x.shape[1], down.shape[2]))
    served = x.device.type == "cpu" or x.dtype == torch.bfloat16
    if not (num_tokens and aligned and served):
        return reference.moe(x, gate_up, down, weights, experts, activation, bias)
    flat = experts.flatten()
    order = flat.argsort(stable=True)  # [n * k] pairs of token and choice, by expert
    numbers = torch.arange(gate_up.shape[0], device=x.device)
    ends = torch.searchsorted(flat[order], numbers, right=True).to(torch.int32)  # [num_experts]
    inputs = x[order // top_k]
    hidden = torch._grouped_mm(inputs, gate_up.transpose(1, 2), offs=ends)  # type: ignore[no-untyped-call,unused-ignore]
    if bias is not None:
        hidden = hidden + bias[flat[order]]
    acted = reference.EXPERTS[activation](hidden)
    outputs = torch._grouped_mm(acted, down.transpose(1, 2), offs=ends)  # type: ignore[no-untyped-call,unused-ignore]
    back = torch.empty_like(outputs)
    back[order] = outputs
    # Each token sums its own k results in a fixed order, so that it never depends on the batch.
    shares = weights.float().unsqueeze(-1)  # [n, k, 1]
    return (back.view(num_tokens, top_k, -1).float() * shares).sum(1).to(x.dtype)
