"""What of a checkpoint's tensor is one layer's on one rank.

Knows sizes and places; knows no format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from core.errors import ModelError

if TYPE_CHECKING:
    import torch

ALL = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The weights [out, in] under one checkpoint prefix, and which of them this rank takes.

    Whoever loads a tensor gets it whole, as it is stored, with this beside it. Sizes and places
    count the numbers of a plain weight; where an element of a tensor stands for several (packed
    words, scales of blocks), `per` says of how many.
    """

    pieces: tuple[tuple[slice, slice], ...]
    """Output rows of the tensor that are this rank's, and where each goes in the layer, in the
    layer's order.
    """
    columns_in: slice
    """Its input columns."""
    out_features: int
    """Output rows in the whole model."""
    in_features: int
    transposed: bool = False
    """A plain weight is stored [in, out]; with several experts, [experts, in, out]."""
    matrix: str = ""
    """Of experts: "gate_up" or "down", the product that these weights are a part of."""
    expert: int = 0
    """Of experts: whose weights they are, unless `num_experts` says that they are those of all."""
    num_experts: int = 0
    """So many experts' weights are in one tensor, along its first axis."""

    @property
    def target(self) -> slice:
        """Rows of the layer that it fills."""
        return slice(self.pieces[0][1].start, self.pieces[-1][1].stop)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a plain weight, as it is stored."""
        sizes = self.out_features, self.in_features
        return (
            *([self.num_experts] if self.num_experts else []),
            *(sizes[::-1] if self.transposed else sizes),
        )

    def blocks(self, rows: int) -> Iterator[Part]:
        """Yield it in parts of so many output rows at most, in the layer's order."""
        for source, target in self.pieces:
            whole = range(source.start, source.stop, source.step or 1)
            for at in range(0, len(whole), rows):
                own = whole[at : at + rows]
                to = target.start + at
                yield replace(
                    self,
                    pieces=((slice(own.start, own.stop, source.step), slice(to, to + len(own))),),
                )

    def rows(self, tensor: torch.Tensor, axis: int = 0, per: int = 1) -> torch.Tensor:
        """Return this rank's output rows, which lie along `axis`, in the layer's order; a view
        where they lie together.

        Raises `ModelError` where the ranks' rows do not end with elements of `per` rows. A tensor
        of one number is everybody's.
        """
        if not tensor.ndim:
            return tensor
        own = [_elements(source, per, self.out_features) for source, _ in self.pieces]
        return _joined([tensor[(ALL,) * (axis % tensor.ndim) + (piece,)] for piece in own], axis)

    def columns(self, tensor: torch.Tensor, axis: int = 1, per: int = 1) -> torch.Tensor:
        """Return this rank's input columns, which lie along `axis`, as a view.

        Raises `ModelError` like `rows`.
        """
        return tensor[
            (ALL,) * (axis % tensor.ndim) + (_elements(self.columns_in, per, self.in_features),)
        ]

    def plain(self, tensor: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield rows of the layer and the view [..., rows, columns] of a plain weight that belongs
        there.
        """
        if self.transposed:
            tensor = tensor.transpose(-1, -2)
        for source, target in self.pieces:
            yield target, tensor[..., source, self.columns_in]


def in_order(
    first: int, length: int, target: int, order: Sequence[int], total: int
) -> Iterator[tuple[slice, slice]]:
    """Yield where `length` of our rows from the `first` on lie in a tensor of `total` rows.

    It keeps them in as many blocks of equal size as `order` is long, the first of ours being its
    `order[0]`-th.
    """
    size = total // len(order)
    at = first
    while at < first + length:
        count = min(size - at % size, first + length - at)
        source = order[at // size] * size + at % size
        to = target + at - first
        yield slice(source, source + count), slice(to, to + count)
        at += count


def merged(pieces: Iterator[tuple[slice, slice]]) -> tuple[tuple[slice, slice], ...]:
    """Return the pieces with those joined that lie together on both sides."""
    out: list[tuple[slice, slice]] = []
    for source, target in pieces:
        if out and (out[-1][0].stop, out[-1][1].stop) == (source.start, target.start):
            source, target = (
                slice(before.start, own.stop)
                for before, own in zip(out.pop(), (source, target), strict=True)
            )
        out.append((source, target))
    return tuple(out)


def _elements(wanted: slice, per: int, total: int) -> slice:
    """Return which elements of `per` numbers hold these of `total`; the last one may be filled by
    fewer.
    """
    if per == 1:
        return wanted
    if (
        wanted.step not in (None, 1)
        or wanted.start % per
        or (wanted.stop % per and wanted.stop != total)
    ):
        raise ModelError(
            f"is stored in elements of {per} numbers, and this rank's part, {wanted.start} to "
            f"{wanted.stop} of {total}, "
            "does not begin and end with them; use a --tensor-parallel-size that divides "
            f"{total // per} of them: "
            f"{', '.join(str(size) for size in range(1, 65) if total % (per * size) == 0) or 1}."
        )
    return slice(wanted.start // per, -(-wanted.stop // per))


def _joined(views: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
    if len(views) == 1:
        return views[0]
    axis %= views[0].ndim
    shape = list(views[0].shape)
    shape[axis] = sum(view.shape[axis] for view in views)
    out = views[0].new_empty(shape)
    at = 0
    for view in views:
        out.narrow(axis, at, view.shape[axis]).copy_(view)
        at += view.shape[axis]
    return out
