"""Where the encoder states of a prompt's items lie, and which of them a token reads.

Cross attention has no positions, so a request's states may lie in any order in its blocks. In
this order those that a token reads are consecutive: first come all states, the padding of items
last; then, from the start of a block on, the states of each group of items but the first once
more. A group is items without text between their placeholders. Its tokens read the items of the
group up to theirs, and those after it read all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from builtin_plugins.features.multimodal.messages import RequestItem


class StateView(NamedTuple):
    """The states that the tokens from one position on read, up to the next view."""

    first_token: int
    offset: int
    """Encoder position of the first state, at the start of a block."""
    length: int


def groups_of(items: Sequence[RequestItem]) -> list[list[int]]:
    """Return the indices of items in groups."""
    groups: list[list[int]] = []
    next_token = -1
    for index, item in enumerate(items):
        (run,) = item.runs
        if run.start == next_token:
            groups[-1].append(index)
        else:
            groups.append([index])
        next_token = run.start + 1
    return groups


def offsets_of(items: Sequence[RequestItem], block_size: int) -> list[int]:
    """Return the encoder position of each group's states, and the number of positions."""
    end = sum(item.num_tokens for item in items)
    offsets = [0]
    for group in groups_of(items)[1:]:
        offset = -(-end // block_size) * block_size
        offsets.append(offset)
        end = offset + sum(items[index].num_tokens for index in group)
    return [*offsets, end]


def views_of(
    items: Sequence[RequestItem], num_visible: Sequence[int], block_size: int
) -> list[StateView]:
    """Return a prompt's views in the order of its tokens.

    `num_visible`: states of each item without its padding.
    """
    total = sum(item.num_tokens for item in items)
    views = [StateView(0, 0, total)]
    offsets = offsets_of(items, block_size)
    for group, offset in zip(groups_of(items), offsets, strict=False):
        length = 0
        for index in group:
            length += num_visible[index]
            views.append(StateView(items[index].runs[0].start, offset, length))
    return views
