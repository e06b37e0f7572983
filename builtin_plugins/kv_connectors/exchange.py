"""What other engines have for requests of this one, and what its requests leave for others.

Knows no bytes and no address.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, Final

import msgspec

from builtin_plugins.kv_connectors.messages import NAME
from builtin_plugins.kv_connectors.trouble import Trouble
from core.api import BlockKey, RemoteKVDirectory

MOST_OTHERS: Final = 1024
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class Exchange:
    """Beside a tier whose connector is one between engines."""

    def __init__(
        self,
        directory: RemoteKVDirectory,
        connector: str,
        scheduler: Any,
        name: Callable[[int, bytes], BlockKey],
    ) -> None:
        """`name`: what stores call a cached block, by group and key."""
        self._directory = directory
        self._connector = connector
        self._scheduler = scheduler
        self._name = name
        self._sizes = [group.block_size for group in scheduler.kv.layout.groups]
        self._link = scheduler.kv.layout.hash_block_size
        self._others: dict[bytes, Trouble] = {}
        self._leaving: dict[str, list[BlockKey]] = {}
        """Blocks of ended requests that another engine was told of, kept until they are being
        written.
        """

    @property
    def troubles(self) -> Sequence[Trouble]:
        """Of the engines that blocks were fetched from."""
        return [*self._others.values()]

    @property
    def keeps_any(self) -> bool:
        """Say whether blocks of ended requests are kept."""
        return bool(self._leaving)

    def source(self, key: BlockKey) -> bytes:
        """Return which other engine has a block; empty: none."""
        return self._directory.source(key)

    def trouble(self, source: bytes) -> Trouble:
        """Return what is known of one of them."""
        if source not in self._others:
            self._others[source] = Trouble(self._connector, "fetching")
            if len(self._others) > MOST_OTHERS:
                del self._others[next(iter(self._others))]
        return self._others[source]

    def arrived(self, request: Any) -> None:
        """Note what another engine has for it."""
        params = request.features.get(NAME)
        if params is None or not (params := _decode(params)).get("do_remote_prefill"):
            return
        self._scheduler.kv.find(
            request.lease, request.tokens, request.num_tokens, tiers=False
        )  # which makes its keys
        blocks = params.get("remote_block_ids")
        most = len(request.keys) if blocks is None else len(blocks) * self._sizes[0] // self._link
        expected = [self._name(*key) for key in self._keys_of(request.keys[:most])]
        self._directory.expect(request.request_id, expected, params)

    def finished(self, request: Any, fresh: Container[BlockKey]) -> bool:
        """Tell who asks how another engine gets what this one has computed.

        Say whether any of it has yet to be written (it is `fresh`): its blocks are kept until
        `let_go`.
        """
        self._directory.forget(request.request_id)
        params = request.features.get(NAME)
        if params is None or not _decode(params).get("do_remote_decode"):
            return False
        blocks = request.tables[0][: request.num_offered // self._sizes[0]]
        request.news[NAME] = _encode(self._directory.offer(blocks))
        unwritten = [key for key in self._keys_of(request.keys) if key in fresh]
        if unwritten:
            self._leaving[request.request_id] = unwritten
        return bool(unwritten)

    def let_go(self, fresh: Container[BlockKey], *, writes: bool) -> None:
        """Give back what ended requests have kept, once each of its blocks is being written or
        (unless it `writes`) never
        will be."""
        for request_id, unwritten in [*self._leaving.items()]:
            if not writes or not any(key in fresh for key in unwritten):
                del self._leaving[request_id]
                self._scheduler.release(request_id)

    def _keys_of(self, keys: Sequence[bytes]) -> Iterator[BlockKey]:
        """Yield the keys of all blocks that a prefix chain stands for."""
        for group, size in enumerate(self._sizes):
            links = size // self._link
            yield from (BlockKey(group, key) for key in keys[links - 1 :: links])
