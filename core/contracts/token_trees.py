"""Guesses of one step as a tree: of each node its children are what may follow it, the likeliest
first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property

Node = tuple[int, ...]
"""The way to a node: which child each step takes, 0 the likeliest."""


@dataclass(frozen=True)
class TokenTree:
    """Its nodes stand in the order in which they are computed: each behind its parent, the first
    way through the tree first.

    Places count from 1; place 0 is the known token that the tree grows from.
    """

    nodes: tuple[Node, ...]
    """The way to each, in order."""

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> TokenTree:
        """Return the tree that has these nodes.

        Raises `ValueError` saying which node lacks its parent or a likelier sibling.
        """
        ordered = tuple(sorted(nodes))
        known = {*ordered}
        if len(known) < len(ordered):
            raise ValueError("names a node twice")
        for node in ordered:
            if not node or min(node) < 0:
                raise ValueError(f"has a node {node}; a node is a tuple of numbers from 0 on")
            before = (node[:-1], (*node[:-1], node[-1] - 1))
            lacking = [each for each in before if each and min(each) >= 0 and each not in known]
            if lacking:
                raise ValueError(f"has {node} but not {lacking[0]}")
        return cls(ordered)

    @classmethod
    def chain(cls, length: int) -> TokenTree:
        """Return the tree without branches."""
        return _chain(length)

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def depths(self) -> list[int]:
        """Return, by place, the tokens from the known one on."""
        return [0, *map(len, self.nodes)]

    @cached_property
    def children(self) -> list[list[int]]:
        """Return, by place, the places of what may follow, the likeliest first."""
        places = {node: place for place, node in enumerate(((), *self.nodes))}
        children: list[list[int]] = [[] for _ in places]
        for node in self.nodes:
            children[places[node[:-1]]].append(places[node])
        return children

    @cached_property
    def paths(self) -> list[list[int]]:
        """Return the places on the way to each leaf; what a path does not share with an earlier one
        ends it.
        """
        places = {node: place for place, node in enumerate(self.nodes, 1)}
        leaves = [node for node in self.nodes if not self.children[places[node]]]
        return [[places[leaf[:end]] for end in range(1, len(leaf) + 1)] for leaf in leaves]


@cache
def _chain(length: int) -> TokenTree:
    return TokenTree(tuple((0,) * depth for depth in range(1, length + 1)))
