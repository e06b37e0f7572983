"""The likeliest nodes of a draft tree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from builtin_plugins.speculators.api import TokenTree

if TYPE_CHECKING:
    import numpy.typing as npt

PRIOR_ACCEPTANCE_RATE: Final = 0.7
"""Acceptance rate assumed before any draft token was verified."""


def likeliest_subtrees(tree: TokenTree) -> list[TokenTree]:
    """Return the trees of the 0, 1, 2 ... likeliest nodes.

    A child is as likely as its next sibling if those before it are wrong, so a parent is more
    likely than its children.
    """
    rate = PRIOR_ACCEPTANCE_RATE
    chances = [rate ** len(node) * (1 - rate) ** sum(node) for node in tree.nodes]
    order = sorted(range(len(tree)), key=lambda index: (-chances[index], tree.nodes[index]))
    return [
        TokenTree.of(tree.nodes[index] for index in order[:count]) for count in range(len(tree) + 1)
    ]


def node_exponents(
    trees: Sequence[TokenTree],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return depths and numbers of more likely siblings of the nodes, in order of likelihood.

    `trees`: as `likeliest_subtrees` returns them.
    """
    added = [next(iter({*tree.nodes} - {*smaller.nodes})) for smaller, tree in pairwise(trees)]
    depths = np.array([len(node) for node in added])
    num_siblings = np.array([sum(node) for node in added])
    return depths, num_siblings
