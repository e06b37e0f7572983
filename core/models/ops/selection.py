"""Selection of the tokens that a query attends to, by the keys of an indexer, in plain torch."""

from __future__ import annotations

from typing import Final

import torch

Tensor = torch.Tensor

KEYS_PER_PIECE: Final = 4096
"""Index keys gathered at a time; on a CPU they stay in its cache."""
MAX_PRODUCTS: Final = 1 << 22
"""Maximum products of index queries and keys in memory at a time."""


def select_tokens(
    query: Tensor, weights: Tensor, keys: Tensor, table: Tensor, seen: Tensor, count: int
) -> Tensor:
    """Return the positions [n, count] with the highest scores, ascending; int32.

    Arguments as those of `reference.select_tokens`; scores are computed in pieces.
    """
    heads = query.shape[1]
    piece = max(1, MAX_PRODUCTS // (heads * KEYS_PER_PIECE))
    found = []
    for start in range(0, len(query), piece):
        some = slice(start, start + piece)
        scores = _scores(query[some], weights[some], keys, table)
        later = torch.arange(scores.shape[1], device=scores.device) >= seen[some, None]
        found.append(top_positions(scores.masked_fill_(later, float("-inf")), count))
    return torch.cat(found)


def _scores(query: Tensor, weights: Tensor, keys: Tensor, table: Tensor) -> Tensor:
    """Return the float32 scores [n, length] of all keys in the blocks of `table`."""
    size = keys.shape[1]
    rows = query.float().flatten(0, 1)
    scores = rows.new_empty(len(query), len(table) * size)
    step = max(1, KEYS_PER_PIECE // size)
    for at in range(0, len(table), step):
        some = keys.index_select(0, table[at : at + step]).flatten(0, 1).float()
        products = (rows @ some.T).relu_().view(*query.shape[:2], len(some))
        sums = torch.bmm(weights[:, None], products).squeeze(1)
        scores[:, at * size : at * size + len(some)] = sums
    return scores


def top_positions(scores: Tensor, count: int) -> Tensor:
    """Return the positions [n, count] of the highest scores [n, length], ascending; int32.

    Of equal scores the first ones are selected. Reads nothing back from the device.
    """
    least = scores.topk(count, sorted=False).values.amin(1, keepdim=True)
    above = scores > least
    equal = scores == least
    num_equal = count - above.sum(1, keepdim=True)
    selected = above | (equal & (equal.cumsum(1) <= num_equal))
    # Positions that are not selected go to an additional column. Scores that are no numbers select
    # too few; the zeros keep positions valid.
    columns = torch.where(selected, selected.cumsum(1) - 1, count)
    positions = torch.arange(scores.shape[1], dtype=torch.int32, device=scores.device)
    positions = positions.expand_as(columns)
    found = positions.new_zeros(len(scores), count + 1)
    return found.scatter_(1, columns, positions)[:, :count]
