"""How the keys of decode sequences are split into pieces: one launch for all layers of a kind."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from core_kernels.triton.attention_shapes import PIECE, AttentionShape, Layer
from core_kernels.triton.launching import next_power_of_2

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """How the keys of a step's decode sequences are split; for layers with equal spans and heads.

    The layers use it one after the other.
    """

    pieces: Tensor
    """[num_seqs + 1] int32: first piece of each sequence, and their total."""
    arrivals: Tensor
    """[num_seqs * programs of one piece] int32, or longer: programs that have stored partial sums.
    0 between layers.
    """


def programs_of_piece(layer: Layer) -> int:
    """Return the number of programs that process one piece, each for some of the heads."""
    return layer.kv_heads * AttentionShape.of(layer, queries=1).parts


def plan_decode(starts: Tensor, lengths: Tensor, layer: Layer) -> DecodePlan:
    """Return the plan of layers with the window, chunk and heads of `layer`.

    Only decode sequences (one token) have pieces.
    """
    num_seqs = len(lengths)
    pieces = torch.empty(num_seqs + 1, dtype=torch.int32, device=lengths.device)
    arrivals = pieces.new_empty(num_seqs * programs_of_piece(layer))
    _plan[(1,)](
        starts,
        lengths,
        pieces,
        arrivals,
        num_seqs,
        arrivals.numel(),
        layer.window,
        layer.chunk,
        BLOCK=next_power_of_2(num_seqs),
        PIECE=PIECE,
        num_warps=4,
    )
    return DecodePlan(pieces, arrivals)


@triton.jit
def first_visible(position, window, chunk):
    """Return the first position visible to the token at `position`."""
    first = position * 0
    if window > 0:
        first = tl.maximum(position - window + 1, 0)
    if chunk > 0:
        first = position // chunk * chunk
    return first


@triton.jit(do_not_specialize=["num_seqs", "num_arrivals", "window", "chunk"])
def _plan(
    starts, lengths, pieces, arrivals, num_seqs, num_arrivals, window, chunk, BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
):  # fmt: skip
    i = tl.arange(0, BLOCK)
    mine = i < num_seqs
    length = tl.load(lengths + i, mask=mine, other=0).to(tl.int32)
    count = tl.load(starts + i + 1, mask=mine, other=0) - tl.load(starts + i, mask=mine, other=0)
    seen = length - first_visible(length - 1, window, chunk)
    number = tl.where(count == 1, (seen + PIECE - 1) // PIECE, 0)
    ends = tl.cumsum(number, 0)
    tl.store(pieces + i, ends - number, mask=mine)
    tl.store(pieces + num_seqs, tl.sum(number))
    for at in range(0, num_arrivals, BLOCK):
        tl.store(arrivals + at + i, i * 0, mask=at + i < num_arrivals)
