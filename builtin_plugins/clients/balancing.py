"""Which engine gets a request: the one that computes fewest tokens before its first one.

The cost of an engine is the prompt's tokens that are not in its cache, a constant for each of its
open requests, and a share of what it got lately more than others: otherwise a short prefix that all
prompts have in common would hold them at one engine while few requests run. Counts are the
balancer's own: they are current when the next request arrives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

OPEN_REQUEST_TOKENS: Final = 16
"""Cost of an open request: about the tokens that a step spends on it while a prompt waits."""
RECENT_SHARE: Final = 0.25
RECENT_DECAY: Final = 1 - 1 / 64
"""Factor per request, so that about a hundred requests count."""
MAX_KEYS: Final = 1 << 17
"""Prefix keys that are remembered per engine; the least recently used ones are dropped."""


class CachedPrefixes:
    """The prefix keys of prompts that one engine has computed."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def match(self, keys: Sequence[bytes]) -> int:
        """Return the number of leading keys that it has computed."""
        return next((index for index, key in enumerate(keys) if key not in self._keys), len(keys))

    def add(self, keys: Sequence[bytes]) -> None:
        """Record computed keys; the first ones stay longest."""
        for key in reversed(keys):
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > MAX_KEYS:
            self._keys.popitem(last=False)

    def clear(self) -> None:
        """Forget all keys, after a restart of the engine."""
        self._keys.clear()


@dataclass(slots=True, eq=False)
class EngineLoad:
    """The load of one engine."""

    cached: CachedPrefixes = field(default_factory=CachedPrefixes)
    num_open: int = 0
    num_requests: int = 0
    """Requests so far; decides between engines of equal cost."""
    recent_tokens: float = 0.0
    """Uncached tokens of its last requests; older ones count less and less."""


class Balancer:
    """The loads of engines, by rank."""

    def __init__(self, num_engines: int) -> None:
        self.loads: Final = [EngineLoad() for _ in range(num_engines)]

    def choose(
        self, ranks: Collection[int], keys: Sequence[bytes], key_tokens: int, num_tokens: int
    ) -> int:
        """Return the rank of least cost among `ranks` for a prompt of `num_tokens` tokens.

        `keys` has a prefix key for every `key_tokens` of them.
        """
        uncached = {
            rank: num_tokens - self.loads[rank].cached.match(keys) * key_tokens for rank in ranks
        }
        least = min(self.loads[rank].recent_tokens for rank in ranks)

        def cost(rank: int) -> tuple[float, int]:
            load = self.loads[rank]
            ahead = RECENT_SHARE * (load.recent_tokens - least)
            return uncached[rank] + OPEN_REQUEST_TOKENS * load.num_open + ahead, load.num_requests

        chosen = min(ranks, key=cost)
        for load in self.loads:
            load.recent_tokens *= RECENT_DECAY
        self.loads[chosen].recent_tokens += uncached[chosen]
        return chosen

    def opened(self, rank: int) -> None:
        """Count a request of an engine."""
        self.loads[rank].num_open += 1
        self.loads[rank].num_requests += 1

    def closed(self, rank: int) -> None:
        """Count the end of a request of an engine."""
        self.loads[rank].num_open -= 1

    def restarted(self, rank: int) -> None:
        """Forget the cache of an engine; it is to get its share of requests, not all of them."""
        self.loads[rank].cached.clear()
        self.loads[rank].recent_tokens = max(load.recent_tokens for load in self.loads)
