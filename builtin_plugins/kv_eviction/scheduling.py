"""The scheduler half: puts an order in the place of the pools' own, and tells it what requests say
of their blocks.

By itself an order comes with the first request that says anything: until then nothing is asked or
told in any step.
"""

from __future__ import annotations

from typing import Any

import msgspec

from builtin_plugins.kv_eviction.admission import NAME
from core.api import EvictionOrder, KVEviction, Retention

_decode = msgspec.msgpack.Decoder(Retention).decode


class Eviction:
    """Beside the scheduler; steps pass it by."""

    name = NAME

    def __init__(self, policy: KVEviction, *, at_once: bool) -> None:
        """`at_once`: the policy orders blocks of which nobody has said anything, too."""
        self._policy = policy
        self._at_once = at_once
        self._orders: list[EvictionOrder] = []
        """By pool."""
        self._now_s = 0.0

    def attach(self, scheduler: Any) -> None:
        """Take the cache."""
        self._kv = scheduler.kv
        layout = self._kv.layout
        self._groups = [
            (
                self._kv.pools[group.pool],
                index,
                group.block_size,
                group.block_size // layout.hash_block_size,
                group.pool,
            )
            for index, group in enumerate(layout.groups)
        ]
        if self._at_once:
            self._begin()

    def _begin(self) -> None:
        """Order what is free; what can be found already is worth what is usual."""
        for pool in self._kv.pools:
            order = self._policy.order(pool.num_blocks)
            for block in pool.free:
                order[block] = None
            pool.free = order
            self._orders.append(order)
        for pool, group, _, _, place in self._groups:
            self._orders[place].used([*pool.find(group).values()], None, self._now_s)
        self._kv.watch(lambda lease, tokens, start: None, self._forgotten)

    def _forgotten(self, group: int, key: bytes, block: int, right: bool) -> None:
        self._orders[self._groups[group][4]].forgotten(block)

    def arrived(self, request: Any) -> None:
        """Time goes on as requests come."""
        self._now_s = max(self._now_s, request.source.arrival_s)
        if not self._orders and NAME in request.features:
            self._begin()

    def finished(self, request: Any) -> bool:
        """Say what was said of its blocks, of those that others can find."""
        if self._orders:
            payload = request.features.get(NAME)
            said = None if payload is None else _decode(payload)
            for pool, group, size, links, place in self._groups:
                found = pool.find(group)
                keys = request.keys[links - 1 : request.num_offered // size * links : links]
                about = (
                    len(keys)
                    if said is None or said.first_tokens is None
                    else said.first_tokens // size
                )
                for part, words in ((keys[:about], said), (keys[about:], None)):
                    self._orders[place].used(
                        [found[key] for key in part if key in found], words, self._now_s
                    )
        return False
