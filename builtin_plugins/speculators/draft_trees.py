"""Fills draft trees with tokens, level by level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from builtin_plugins.speculators.contract import TokenTree

if TYPE_CHECKING:
    import torch

    from builtin_plugins.speculators.contract import DraftRow


class LevelNode(NamedTuple):
    """A node with children to fill."""

    row: int
    """Index of its row among the drafted rows."""
    node: int
    """Index in its row's tree; 0: the root."""
    parent: int
    """Index of its parent in the previous level."""


def fill_trees(
    rows: Sequence[DraftRow],
    first_level: Callable[[int], list[list[int]]],
    next_level: Callable[[list[LevelNode], list[list[int]], int], list[list[int]]],
) -> list[list[int]]:
    """Return a token for each node of each row's tree or chain.

    `first_level(n)` returns the top n next tokens of each row. `next_level(nodes, tokens, n)`
    returns those after the nodes of one level; their tokens are `tokens[row][node - 1]`.
    """
    trees = [row.tree or TokenTree.chain(row.max_draft_tokens) for row in rows]
    tokens = [[0] * len(tree) for tree in trees]
    level = [LevelNode(row, 0, row) for row in range(len(trees))]
    best = first_level(_max_children(trees, level))
    while True:
        following = []
        for index, (node, likely) in enumerate(zip(level, best, strict=True)):
            children = trees[node.row].children
            for child, token in zip(children[node.node], likely, strict=False):
                tokens[node.row][child - 1] = token
                if children[child]:
                    following.append(LevelNode(node.row, child, index))
        level = following
        if not level:
            return tokens
        best = next_level(level, tokens, _max_children(trees, level))


def top_tokens(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Return the top tokens [n, count] of logits [n, vocab], or fewer in a small vocabulary."""
    if count == 1:
        return logits.argmax(dim=-1, keepdim=True)
    return logits.topk(min(count, logits.shape[-1]), dim=-1).indices


def _max_children(trees: Sequence[TokenTree], level: Sequence[LevelNode]) -> int:
    return max((len(trees[node.row].children[node.node]) for node in level), default=1)
