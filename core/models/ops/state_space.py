"""State-space ops by products of matrices and by rows of tokens: what runs where nothing faster is
installed.

`core.models.ops.reference` says what each means.
"""

from __future__ import annotations

import math
from typing import Final

import torch
import torch.nn.functional as F

Tensor = torch.Tensor

CHUNK: Final = 64
"""Tokens whose influence on each other is one matrix product."""


def ssd_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what `reference.ssd_scan` returns, by products over chunks of tokens."""
    n, length, heads, head_size = x.shape
    groups = write.shape[2]
    shape = (n, length, groups, heads // groups)
    step = step.float()
    moved = (
        (x.float() * step[..., None]).view(*shape, head_size).permute(0, 2, 3, 1, 4)
    )  # [n, g, r, length, head_size]
    falls = (step * decay.float()).view(shape).permute(0, 2, 3, 1)  # [n, g, r, length]
    write, read = (
        part.float().transpose(1, 2)[:, :, None] for part in (write, read)
    )  # [n, g, 1, length, state_size]
    held = state.float().view(n, groups, heads // groups, head_size, -1)
    pieces = []
    for at in range(0, length, CHUNK):
        here = slice(at, at + CHUNK)
        out, held = _ssd_chunk(
            moved[..., here, :], falls[..., here], write[..., here, :], read[..., here, :], held
        )
        pieces.append(out)
    out = torch.cat(pieces, dim=3) if len(pieces) > 1 else pieces[0]
    return out.permute(0, 3, 1, 2, 4).reshape(x.shape), held.reshape(state.shape)


def _ssd_chunk(
    x: Tensor, falls: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the result of neighbouring tokens and the state after them; heads are [groups, heads
    of a group].
    """
    if falls.shape[-1] == 1:
        state = state * falls.exp()[..., None] + x.transpose(-1, -2) * write
        return (state * read).sum(-1)[..., None, :], state
    fallen = falls.cumsum(-1)  # [n, g, r, tokens], logarithms
    tokens = falls.shape[-1]
    ahead = torch.ones(tokens, tokens, dtype=torch.bool, device=falls.device).triu_(1)
    between = (
        (fallen[..., :, None] - fallen[..., None, :]).masked_fill_(ahead, float("-inf")).exp_()
    )
    out = (read @ write.transpose(-1, -2) * between) @ x
    out += (read @ state.transpose(-1, -2)) * fallen.exp()[..., None]
    left = (fallen[..., -1:] - fallen).exp()[..., None]
    return out, state * fallen[..., -1:, None].exp() + (x * left).transpose(-1, -2) @ write


def selective_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what `reference.selective_scan` returns, rows of tokens side by side."""
    state = state.float()
    pieces = []
    for at in range(0, x.shape[1], 4 * CHUNK):  # not all tokens' states are held at once
        here = slice(at, at + 4 * CHUNK)
        out, state = _selective_piece(
            x[:, here], step[:, here], decay, write[:, here], read[:, here], state
        )
        pieces.append(out)
    return torch.cat(pieces, dim=1), state


def _selective_piece(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows of about the square root of the tokens each: all rows walk together, then their first
    states are found.
    """
    n, length, channels = x.shape
    row = math.isqrt(length - 1) + 1
    rows = -(-length // row)
    more = rows * row - length  # tokens of step 0 behind the others change nothing
    step = F.pad(step.float(), (0, 0, 0, more))
    falls = (step[..., None] * decay.float()).exp_().view(n, rows, row, channels, -1)
    moved = step * F.pad(x.float(), (0, 0, 0, more))
    states = (moved[..., None] * F.pad(write.float(), (0, 0, 0, more))[:, :, None]).view(
        falls.shape
    )
    for token in range(1, row):
        states[:, :, token].addcmul_(falls[:, :, token], states[:, :, token - 1])
        falls[:, :, token].mul_(falls[:, :, token - 1])
    firsts = []
    for index in range(rows):
        firsts.append(state)
        state = states[:, index, -1] + falls[:, index, -1] * state
    states.addcmul_(falls, torch.stack(firsts, 1)[:, :, None])
    out = torch.einsum("nlcs,nls->nlc", states.flatten(1, 2)[:, :length], read.float())
    return out, state
