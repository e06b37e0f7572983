"""One rank's shard of a layer's weights in the checkpoint: sizes and indices, no format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from core.errors import ModelError

if TYPE_CHECKING:
    import torch

ALL = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightShard:
    """One rank's shard of the weights [out, in] under a checkpoint prefix.

    A method's `load` receives the whole stored tensor together with the shard. Sizes and indices
    count the elements of a plain weight. If one element of a tensor stands for several (packed
    words, block scales), `per` is their number.
    """

    pieces: tuple[tuple[slice, slice], ...]
    """This rank's output rows of the tensor with their target rows, in the layer's order."""
    columns_in: slice
    """This rank's input columns of the tensor."""
    out_features: int
    """Output rows in the whole model."""
    in_features: int
    """Input columns in the whole model."""
    transposed: bool = False
    """True: a plain weight is stored [in, out]; with several experts, [experts, in, out]."""
    matrix: str = ""
    """For experts: "gate_up" or "down", the product that these weights belong to."""
    expert: int = 0
    """Index among this rank's experts, if the tensor holds one expert; -1: another rank's."""
    num_experts: int = 0
    """Number of this rank's experts, along the tensor's first axis; 0: it has no such axis."""

    @property
    def target(self) -> slice:
        """The layer's rows that it fills."""
        return slice(self.pieces[0][1].start, self.pieces[-1][1].stop)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a plain weight as stored."""
        sizes = (self.out_features, self.in_features)
        if self.transposed:
            sizes = sizes[::-1]
        return (self.num_experts, *sizes) if self.num_experts else sizes

    def blocks(self, rows: int) -> Iterator[WeightShard]:
        """Yield the shard in parts of up to `rows` output rows, in the layer's order."""
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
        """Return this rank's output rows along `axis` in the layer's order.

        Contiguous rows are a view. A tensor of one element belongs to all ranks. Raises
        `ModelError` if the ranks' bounds fall within an element of `per` rows.
        """
        if not tensor.ndim:
            return tensor
        own = [_elements(source, per, self.out_features) for source, _ in self.pieces]
        return _joined([tensor[(ALL,) * (axis % tensor.ndim) + (piece,)] for piece in own], axis)

    def columns(self, tensor: torch.Tensor, axis: int = 1, per: int = 1) -> torch.Tensor:
        """Return a view of this rank's input columns along `axis`.

        Raises `ModelError` like `rows`.
        """
        own = _elements(self.columns_in, per, self.in_features)
        return tensor[(ALL,) * (axis % tensor.ndim) + (own,)]

    def plain(self, tensor: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield the layer's rows with their view [..., rows, columns] of a plain weight."""
        if self.transposed:
            tensor = tensor.transpose(-1, -2)
        for source, target in self.pieces:
            yield target, tensor[..., source, self.columns_in]


def in_order(
    first: int, length: int, target: int, order: Sequence[int], total: int
) -> Iterator[tuple[slice, slice]]:
    """Yield the pieces of our rows `first` to `first + length` in a tensor of `total` rows.

    The tensor holds `len(order)` blocks of equal size; our block i is its block `order[i]`.
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
    """Return the pieces, with pieces that are contiguous on both sides joined."""
    out: list[tuple[slice, slice]] = []
    for source, target in pieces:
        if out and (out[-1][0].stop, out[-1][1].stop) == (source.start, target.start):
            last_source, last_target = out.pop()
            source = slice(last_source.start, source.stop)
            target = slice(last_target.start, target.stop)
        out.append((source, target))
    return tuple(out)


def _elements(span: slice, per: int, total: int) -> slice:
    """Return the slice of stored elements, of `per` numbers each, for a slice of numbers.

    The last element may stand for fewer numbers. Raises `ModelError` for bounds within an element.
    """
    if per == 1:
        return span
    if span.step not in (None, 1) or span.start % per or (span.stop % per and span.stop != total):
        sizes = [str(size) for size in range(1, 65) if total % (per * size) == 0]
        raise ModelError(
            f"is stored in elements of {per} numbers, and this rank's part, {span.start} to "
            f"{span.stop} of {total}, does not begin and end with them; use a "
            f"--tensor-parallel-size that divides {total // per} of them: "
            f"{', '.join(sizes) or 1}."
        )
    return slice(span.start // per, -(-span.stop // per))


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
