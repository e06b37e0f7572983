"""Torch implementations that are faster than the reference: chunked scans and grouped experts.

`core.models.ops.reference` defines each op.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
import torch.nn.functional as F

from core.models.ops import reference

Tensor = torch.Tensor

CHUNK: Final = 64
"""Tokens of a delta-rule chunk; their corrections solve one triangular system."""
CHUNK_BY_CHANNEL: Final = 16
"""Chunk size for per-channel decay; its pairwise decay matrix has a channel axis."""


def delta_scan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    write: Tensor,
    state: Tensor,
    query_scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return `reference.delta_scan` by matrix products over chunks of tokens."""
    each = value.shape[2] // key.shape[2]
    query, key = reference.l2_normalized(query, key, query_scale)
    query, key = (part.float().repeat_interleave(each, 2).transpose(1, 2) for part in (query, key))
    value = value.float().transpose(1, 2)
    write = write.float().transpose(1, 2)[..., None]
    by_channel = decay.ndim == 4
    decay = (
        (decay if by_channel else decay[..., None]).float().transpose(1, 2)
    )  # [n, heads, length, key_size | 1]
    state = state.float()
    chunks = []
    size = CHUNK_BY_CHANNEL if by_channel else CHUNK
    for at in range(0, value.shape[2], size):
        here = (..., slice(at, at + size), slice(None))
        out, state = _delta_chunk(
            query[here], key[here], value[here], decay[here], write[here], state
        )
        chunks.append(out)
    return torch.cat(chunks, dim=2).transpose(1, 2), state


def _delta_chunk(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, write: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return one chunk's outputs [n, heads, tokens, value_size] and the state after it."""
    left = decay.cumsum(-2)  # log of the cumulative decay at each token
    grown = left.exp()
    found = (key * grown) @ state
    if decay.shape[-2] == 1:
        state = state * grown.transpose(-1, -2) + key.transpose(-1, -2) @ ((value - found) * write)
        return query @ state, state
    reads = _between(query, key, left)
    overlaps = _between(key, key, left)
    # Each token corrects the writes before it: the corrections of a chunk solve one system.
    system = overlaps * write
    wrong = torch.linalg.solve_triangular(
        system, (value - found) * write, upper=False, unitriangular=True
    )
    out = (query * grown) @ state + reads @ wrong
    last = left[..., -1:, :]
    return out, state * last.exp().transpose(-1, -2) + (key * (last - left).exp()).transpose(
        -1, -2
    ) @ wrong


def _between(of: Tensor, key: Tensor, left: Tensor) -> Tensor:
    """Return causal products of each token with earlier keys, decayed in between: [n, heads,
    tokens, tokens].
    """
    tokens = left.shape[-2]
    future = torch.ones(tokens, tokens, dtype=torch.bool, device=left.device).triu_(1)[..., None]
    weights = (
        (left[..., :, None, :] - left[..., None, :, :]).masked_fill_(future, float("-inf")).exp_()
    )
    if left.shape[-1] == 1:
        return of @ key.transpose(-1, -2) * weights[..., 0]
    return torch.einsum("...ic,...jc,...ijc->...ij", of, key, weights)


def linear_recurrence(x: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return `reference.linear_recurrence` by parallel sums over 2, 4, 8, ... tokens."""
    out = x.float()
    remaining = decay.float().exp()
    stride = 1
    while stride < x.shape[1]:
        carried = out[:, :-stride] * remaining[:, stride:]
        out = torch.cat([out[:, :stride], out[:, stride:] + carried], dim=1)
        product = remaining[:, stride:] * remaining[:, :-stride]
        remaining = torch.cat([remaining[:, :stride], product], dim=1)
        stride *= 2
    out = out + remaining * state.float()[:, None]
    return out, out[:, -1]


SSM_CHUNK: Final = 64
"""Tokens of an SSM chunk, computed as one matrix product."""


def ssd_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return `reference.ssd_scan` by matrix products over chunks of tokens."""
    n, length, heads, head_size = x.shape
    groups = write.shape[2]
    shape = (n, length, groups, heads // groups)
    step = step.float()
    scaled_x = (
        (x.float() * step[..., None]).view(*shape, head_size).permute(0, 2, 3, 1, 4)
    )  # [n, g, r, length, head_size]
    log_decay = (step * decay.float()).view(shape).permute(0, 2, 3, 1)  # [n, g, r, length]
    write, read = (
        part.float().transpose(1, 2)[:, :, None] for part in (write, read)
    )  # [n, g, 1, length, state_size]
    state_view = state.float().view(n, groups, heads // groups, head_size, -1)
    chunks = []
    for at in range(0, length, SSM_CHUNK):
        here = slice(at, at + SSM_CHUNK)
        out, state_view = _ssd_chunk(
            scaled_x[..., here, :],
            log_decay[..., here],
            write[..., here, :],
            read[..., here, :],
            state_view,
        )
        chunks.append(out)
    out = torch.cat(chunks, dim=3) if len(chunks) > 1 else chunks[0]
    return out.permute(0, 3, 1, 2, 4).reshape(x.shape), state_view.reshape(state.shape)


def _ssd_chunk(
    x: Tensor, log_decay: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return one chunk's outputs and the state after it; heads are [groups, heads of a group]."""
    if log_decay.shape[-1] == 1:
        state = state * log_decay.exp()[..., None] + x.transpose(-1, -2) * write
        return (state * read).sum(-1)[..., None, :], state
    cumulative = log_decay.cumsum(-1)  # [n, g, r, tokens], logarithms
    tokens = log_decay.shape[-1]
    future = torch.ones(tokens, tokens, dtype=torch.bool, device=log_decay.device).triu_(1)
    between = (
        (cumulative[..., :, None] - cumulative[..., None, :])
        .masked_fill_(future, float("-inf"))
        .exp_()
    )
    out = (read @ write.transpose(-1, -2) * between) @ x
    out += (read @ state.transpose(-1, -2)) * cumulative.exp()[..., None]
    left = (cumulative[..., -1:] - cumulative).exp()[..., None]
    return out, state * cumulative[..., -1:, None].exp() + (x * left).transpose(-1, -2) @ write


def selective_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return `reference.selective_scan`, computing rows of tokens in parallel."""
    state = state.float()
    chunks = []
    for at in range(0, x.shape[1], 4 * SSM_CHUNK):  # bounds the memory of per-token states
        here = slice(at, at + 4 * SSM_CHUNK)
        out, state = _selective_piece(
            x[:, here], step[:, here], decay, write[:, here], read[:, here], state
        )
        chunks.append(out)
    return torch.cat(chunks, dim=1), state


def _selective_piece(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Scan rows of about sqrt(tokens) in parallel, then propagate the state between rows."""
    n, length, channels = x.shape
    row = math.isqrt(length - 1) + 1
    rows = -(-length // row)
    more = rows * row - length  # padding tokens with step 0 leave the state unchanged
    step = F.pad(step.float(), (0, 0, 0, more))
    log_decay = (step[..., None] * decay.float()).exp_().view(n, rows, row, channels, -1)
    scaled_x = step * F.pad(x.float(), (0, 0, 0, more))
    states = (scaled_x[..., None] * F.pad(write.float(), (0, 0, 0, more))[:, :, None]).view(
        log_decay.shape
    )
    for token in range(1, row):
        states[:, :, token].addcmul_(log_decay[:, :, token], states[:, :, token - 1])
        log_decay[:, :, token].mul_(log_decay[:, :, token - 1])
    firsts = []
    for index in range(rows):
        firsts.append(state)
        state = states[:, index, -1] + log_decay[:, index, -1] * state
    states.addcmul_(log_decay, torch.stack(firsts, 1)[:, :, None])
    out = torch.einsum("nlcs,nls->nlc", states.flatten(1, 2)[:, :length], read.float())
    return out, state


def grouped_moe(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    activation: str = "silu",
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `reference.moe`, computing only the experts chosen for each token.

    Tokens are sorted by expert on the device; nothing is read back to the host. Inputs that the
    grouped product does not support use the reference: an empty step, rows that are not a multiple
    of 16 bytes, and dtypes other than bfloat16 on devices other than the CPU.
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
    grouped_mm: Any = torch._grouped_mm
    hidden = grouped_mm(inputs, gate_up.transpose(1, 2), offs=ends)
    if bias is not None:
        hidden = hidden + bias[flat[order].clamp(max=len(bias) - 1)]
    acted = reference.expert_activation(activation)(hidden)
    outputs = grouped_mm(acted, down.transpose(1, 2), offs=ends)
    back = torch.empty_like(outputs)
    back[order] = outputs
    # Each token sums its k results in a fixed order, so its result is batch invariant.
    shares = weights.float().unsqueeze(-1)  # [n, k, 1]
    products = back.view(num_tokens, top_k, -1).float() * shares
    # Rows of experts of other ranks are uninitialised.
    is_other = (experts == gate_up.shape[0]).unsqueeze(-1)
    return products.masked_fill(is_other, 0.0).sum(1).to(x.dtype)
