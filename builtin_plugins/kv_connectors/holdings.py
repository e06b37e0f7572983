"""What a tier has, by the names that its stores know: the connector's directory, and what is to be
dropped for others.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from core.api import BlockKey


class Holdings:
    """The blocks of one tier, on all ranks."""

    def __init__(self, directory: Any, num_ranks: int) -> None:
        self.directory = directory
        self.num_evicted = 0
        """Since the start."""
        self.pinned: Counter[BlockKey] = Counter()
        """Blocks that are, or are to be, read: they make room for nobody."""
        self._num_ranks = num_ranks
        self._found: defaultdict[BlockKey, set[int]] = defaultdict(set)
        """Blocks that some ranks' stores have of their own accord, and which ranks'."""
        self._drops: list[BlockKey] = []
        self._domain = b""
        """What tells keys of blocks of these weights from those of others."""

    def name(self, group: int, key: bytes) -> BlockKey:
        """Return what the stores call a cached block."""
        return BlockKey(group, hashlib.sha256(self._domain + key).digest() if self._domain else key)

    def rename(self, domain: bytes) -> None:
        """From here on blocks have other names."""
        self._domain = domain

    def admit(self, name: BlockKey) -> bool:
        """Have room made for a block; say whether there is any."""
        going = self.directory.admit(name, self.pinned)
        if going is None:
            return False
        self._drops += going
        self.num_evicted += len(going)
        return True

    def lose(self, name: BlockKey) -> None:
        """A block is not there, or not to be trusted."""
        self.directory.lost(name)
        self._drops.append(name)

    def found(self, rank: int, names: Sequence[BlockKey]) -> None:
        """One rank's store has these of its own accord: what all of them have is held."""
        for name in names:
            self._found[name].add(rank)
            if len(self._found[name]) < self._num_ranks:
                continue
            del self._found[name]
            if not self.directory.holds(name) and self.admit(name):
                self.directory.stored(name)

    @property
    def drops_any(self) -> bool:
        """Say whether stores are to be told of blocks that they need not keep."""
        return bool(self._drops)

    def take_drops(self) -> list[BlockKey]:
        """Return these blocks, once."""
        drops = self._drops
        self._drops = []
        return drops
