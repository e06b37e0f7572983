"""The gated delta rule by products of matrices over chunks of tokens, and a running sum that fades.

`core.models.ops.reference` says what each means.
"""

from __future__ import annotations

from typing import Final

import torch

Tensor = torch.Tensor

CHUNK: Final = 64
"""Tokens whose corrections of each other are one triangular system."""
CHUNK_BY_CHANNEL: Final = 16
"""Fewer where each channel decays by itself: between two tokens there are as many numbers as
channels.
"""


def delta_scan(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, write: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what `reference.delta_scan` returns, by products over chunks of tokens."""
    each = value.shape[2] // key.shape[2]
    query, key = (part.float().repeat_interleave(each, 2).transpose(1, 2) for part in (query, key))
    value = value.float().transpose(1, 2)
    write = write.float().transpose(1, 2)[..., None]
    by_channel = decay.ndim == 4
    decay = (
        (decay if by_channel else decay[..., None]).float().transpose(1, 2)
    )  # [n, heads, length, key_size | 1]
    state = state.float()
    pieces = []
    size = CHUNK_BY_CHANNEL if by_channel else CHUNK
    for at in range(0, value.shape[2], size):
        here = (..., slice(at, at + size), slice(None))
        out, state = _delta_chunk(
            query[here], key[here], value[here], decay[here], write[here], state
        )
        pieces.append(out)
    return torch.cat(pieces, dim=2).transpose(1, 2), state


def _delta_chunk(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, write: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the results of neighbouring tokens [n, heads, tokens, value_size] and the state after
    them.
    """
    left = decay.cumsum(-2)  # logarithms of what is left of the first state at each token
    grown = left.exp()
    found = (key * grown) @ state
    if decay.shape[-2] == 1:
        state = state * grown.transpose(-1, -2) + key.transpose(-1, -2) @ ((value - found) * write)
        return query @ state, state
    reads = _between(query, key, left)
    overlaps = _between(key, key, left)
    # A token corrects what those before it have written: their corrections and its own solve one
    # system.
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
    """Return the products of each token with the keys up to its own, faded in between: [n, heads,
    tokens, tokens].
    """
    tokens = left.shape[-2]
    ahead = torch.ones(tokens, tokens, dtype=torch.bool, device=left.device).triu_(1)[..., None]
    faded = (
        (left[..., :, None, :] - left[..., None, :, :]).masked_fill_(ahead, float("-inf")).exp_()
    )
    if left.shape[-1] == 1:
        return of @ key.transpose(-1, -2) * faded[..., 0]
    return torch.einsum("...ic,...jc,...ijc->...ij", of, key, faded)


def fading_sum(x: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `reference.fading_sum` returns: sums over 2, 4, 8, ... tokens."""
    out = x.float()
    kept = decay.float().exp()
    reach = 1
    while reach < x.shape[1]:
        more = out[:, :-reach] * kept[:, reach:]
        out = torch.cat([out[:, :reach], out[:, reach:] + more], dim=1)
        kept = torch.cat([kept[:, :reach], kept[:, reach:] * kept[:, :-reach]], dim=1)
        reach *= 2
    out = out + kept * state.float()[:, None]
    return out, out[:, -1]
