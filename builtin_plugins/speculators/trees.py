"""Trees of guesses: which of their nodes are the likeliest, and how those are filled level by
level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from builtin_plugins.speculators.pace import LIKELY
from core.api import TokenTree

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from core.api import DraftRow


class Grown(NamedTuple):
    """A node that others follow."""

    row: int
    """Which of the rows that are guessed for."""
    place: int
    parent: int
    """Where its parent stood among those of the level before."""


def likeliest(tree: TokenTree) -> list[TokenTree]:
    """Return the trees of its likeliest 0, 1, 2 and more nodes.

    A child is as likely as the next, given that those before it are wrong; so a parent is likelier
    than its children.
    """
    chances = [LIKELY ** len(node) * (1 - LIKELY) ** sum(node) for node in tree.nodes]
    order = sorted(range(len(tree)), key=lambda at: (-chances[at], tree.nodes[at]))
    return [TokenTree.of(tree.nodes[at] for at in order[:count]) for count in range(len(tree) + 1)]


def exponents(trees: Sequence[TokenTree]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return, for the node by which each tree is larger than the one before: its depth, and the
    siblings on its way that are likelier.
    """
    added = [next(iter({*tree.nodes} - {*less.nodes})) for less, tree in pairwise(trees)]
    return np.array([len(node) for node in added]), np.array([sum(node) for node in added])


def fill(
    rows: Sequence[DraftRow],
    begin: Callable[[int], list[list[int]]],
    go_on: Callable[[list[Grown], list[list[int]], int], list[list[int]]],
) -> list[list[int]]:
    """Return a token for each node of each row's tree, or of the chain it wants.

    `begin(n)` returns the n likeliest tokens behind each row's known ones, `go_on(nodes, tokens,
    n)` those behind nodes, all of one level, whose tokens stand at `tokens[row][place - 1]`.
    """
    trees = [each.tree or TokenTree.chain(each.most) for each in rows]
    tokens = [[0] * len(tree) for tree in trees]
    level = [Grown(row, 0, row) for row in range(len(trees))]
    best = begin(_widest(trees, level))
    while True:
        following = []
        for at, (node, likely) in enumerate(zip(level, best, strict=True)):
            children = trees[node.row].children
            for place, token in zip(children[node.place], likely, strict=False):
                tokens[node.row][place - 1] = token
                if children[place]:
                    following.append(Grown(node.row, place, at))
        level = following
        if not level:
            return tokens
        best = go_on(level, tokens, _widest(trees, level))


def likely_tokens(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Return the likeliest tokens [n, count] of logits [n, vocab], or as many as there are."""
    if count == 1:
        return logits.argmax(dim=-1, keepdim=True)
    return logits.topk(min(count, logits.shape[-1]), dim=-1).indices


def _widest(trees: Sequence[TokenTree], level: Sequence[Grown]) -> int:
    return max((len(trees[node.row].children[node.place]) for node in level), default=1)
