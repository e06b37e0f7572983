"""The worker half: moves blocks between the cache and a store, in threads beside the steps."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from builtin_plugins.kv_connectors.blocks import CacheBlocks, facts_of, fingerprint_of
from builtin_plugins.kv_connectors.lanes import Claim, Lane
from builtin_plugins.kv_connectors.messages import (
    NAME,
    OTHER_WEIGHTS,
    Found,
    Late,
    Look,
    Looked,
    Moved,
    Opened,
    Order,
    Orders,
    Refilled,
    Told,
)
from builtin_plugins.kv_connectors.names import Damaged, Gone
from builtin_plugins.kv_connectors.sealing import sealer_on
from core.api import BlockKey, EngineConfig, KVConnector, KVTransferConfig, ModelError, StoreParts
from core.contracts.scheduling import LoadedParts, WorkerParts
from core.model_spec.kv import CrossAttention

log = logging.getLogger(__name__)
SURVEY_SHARE: Final = 1 / 16
"""Of a store's size: after so many bytes written it is looked through again for what others have
put there.
"""
FOUND_AT_ONCE: Final = 4096
CLOSE_S: Final = 3.0
UNLIKE_WRITTEN: Final = "what was read is not what was written"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Orders).decode


class Unfit(Exception):
    """A block of another engine does not fit its seal: it may have made room for another while it
    was read.
    """


class Mover:
    """Obeys the half beside the scheduler, and tells it what has become of each order."""

    def __init__(
        self, connector: KVConnector, settings: KVTransferConfig, name: str = NAME
    ) -> None:
        self.name = name
        self._connector = connector
        self._settings = settings
        self._lanes: tuple[Lane[Any], ...] = ()
        self._ended = threading.Event()
        self._asked_s: float | None = None
        """When the other half first said something, by the monotonic clock."""
        self._is_open = False
        self._version = 0
        """How often the weights were filled again since the start."""
        self._keeps_all = False
        """A block could not be dropped, which was said: a place that is read-only refuses each."""
        self._unsurveyed = 0
        """Bytes written since the store was looked through."""
        self._survey_s = math.inf
        """When it is next looked through whatever is written, by the monotonic clock."""

    def loaded(self, parts: LoadedParts) -> list[Any]:
        """Remember what lays out the cache.

        Raises `ModelError` for one that is not found again by its tokens.
        """
        if any(isinstance(layer.spec, CrossAttention) for layer in parts.model.kv_layers):
            raise ModelError(
                "--kv-transfer-config: what this model caches depends on what its encoder read "
                "(cross attention), so it is "
                "not found again by its tokens. Leave KV connectors out."
            )
        self._backend = parts.context.attention
        return []

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return what the connector may take."""
        return self._connector.host_bytes(model, config)

    def attach(self, parts: WorkerParts) -> None:
        """Open the store. Raises `ConfigError` where it cannot work."""
        group = parts.group
        pipeline = parts.pipeline
        layout = parts.layout
        self._rank = pipeline.rank * group.size + group.rank
        num_ranks = pipeline.size * group.size
        facts = facts_of(parts.config, layout, self._backend, parts.device, self._rank, num_ranks)
        self._outgoing = CacheBlocks(layout, parts.memory)
        self._incoming = CacheBlocks(layout, parts.memory)
        self._block_bytes = self._outgoing.block_bytes
        self._sealer = sealer_on(parts.device)
        self._send = parts.tell
        self._model = parts.model
        self._times_filled = _times_filled(parts.model)
        store_parts = StoreParts(
            layout, self._rank, num_ranks, fingerprint_of(facts), self._block_bytes, facts
        )
        self._store: Any = self._connector.store(store_parts)
        self._is_memory = hasattr(self._store, "held")
        directory = self._connector.directory(layout, group.size)
        self._survey_bytes = int(directory.most_bytes * SURVEY_SHARE)
        self._reads = Lane("kv-read", self._read, self._moved)
        self._writes = Lane("kv-write", self._write, self._moved)
        self._lanes = self._reads, self._writes
        if hasattr(self._store, "look"):
            self._looks = Lane("kv-look", self._look, self._unlooked)
            self._lanes += (self._looks,)
        threading.Thread(target=self._watch, name="kv-watch", daemon=True).start()

    def begin(self, payload: bytes | None) -> None:
        """Take what begins with a step; with the first of it the store is looked through."""
        if (version := _times_filled(self._model) - self._times_filled) != self._version:
            self._version = version
            self._tell(Refilled(self._rank, version, os.urandom(16)))
        if payload is not None:
            if self._asked_s is None:
                self._asked_s = time.monotonic()
                self._writes.put([], self._open)
            self._obey(_decode(payload))

    def _obey(self, orders: Orders) -> None:
        if orders.version != self._version:
            refused = [*orders.reads, *orders.writes]
            self._moved(refused, dict.fromkeys((order.id for order in refused), OTHER_WEIGHTS))
            orders = Orders(drops=orders.drops, looks=orders.looks)
        if orders.reads:
            self._reads.put(orders.reads)
        if orders.writes or orders.drops:
            self._writes.put(orders.writes, lambda: self._drop(orders.drops))
        if orders.looks:
            self._looks.put(orders.looks)

    def close(self) -> None:
        """Let the threads do what they have, for a moment, and end them."""
        self._ended.set()
        ended = [lane.close(CLOSE_S) for lane in self._lanes]
        if ended and all(ended):
            self._store.close()
        self._lanes = ()

    # --- in the threads

    def _open(self) -> None:
        self._survey()
        self._say_open()

    def _say_open(self) -> None:
        self._is_open = True
        self._tell(Opened(self._rank))

    def _survey(self) -> None:
        self._unsurveyed = 0
        self._survey_s = time.monotonic() + getattr(self._store, "survey_s", math.inf)
        try:
            found = list(self._store.survey())
        except Exception:
            log.exception("the KV connector %s cannot say what it has", self._settings.kv_connector)
            return
        for at in range(0, len(found), FOUND_AT_ONCE):
            self._tell(Found(self._rank, found[at : at + FOUND_AT_ONCE]))

    def _drop(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            try:
                self._store.drop(key)
            except Exception as error:  # noqa: BLE001 - stores may raise anything; who wants its room finds none
                if not self._keeps_all:
                    log.warning(
                        "the KV connector %s cannot drop blocks: %s",
                        self._settings.kv_connector,
                        error,
                    )
                self._keeps_all = True

    def _write(self, order: Order, claim: Claim) -> None:
        key = order.key
        if self._is_memory:
            with claim():
                block = self._outgoing.look(key.group, order.block)
                place = self._store.place(key)
                seal = self._sealer.copy(key, block, block.sizes.cut(place))
            self._store.keep(key, place, seal)
        else:
            with claim():
                block = self._outgoing.look(key.group, order.block)
                seal = self._sealer.seal(key, block, self._store.seal)
            # From here on it may be given up and its block be somebody else's: then it does not fit
            # its seal.
            self._store.write(key, block.arrays(), seal)
        self._unsurveyed += self._block_bytes[key.group]
        if self._unsurveyed > self._survey_bytes:
            self._survey()

    def _read(self, order: Order, claim: Claim) -> None:
        key = order.key
        incoming = self._incoming
        if order.source or self._is_memory:
            held, sealed = (
                self._store.fetch(order.source, key) if order.source else self._store.held(key)
            )
            with claim():
                landing = incoming.landing(key.group, order.block)
                if self._sealer.copy(key, landing.sizes.cut(held), landing) != sealed:
                    for part in landing.arrays():
                        part.fill(
                            0
                            # damaged numbers may be none, and what is computed there reads all of a
                            # block
                        )
                    raise (
                        Unfit("it is not what was sealed")
                        if order.source
                        else Damaged(UNLIKE_WRITTEN)
                    )
                incoming.land(key.group, order.block)
            return
        staging = incoming.staging(key.group)
        try:
            sealed = self._store.read(key, staging.arrays())
        except FileNotFoundError as error:
            raise Gone(str(error)) from error
        if sealed != self._sealer.seal(key, staging, self._store.seal):
            raise Damaged(UNLIKE_WRITTEN)
        with claim():
            incoming.put(key.group, order.block)

    def _look(self, order: Look, _: Claim) -> None:
        self._tell(Looked(self._rank, order.id, [*self._store.look(order.keys)]))

    def _unlooked(self, orders: Sequence[Look], errors: dict[int, str]) -> None:
        for id_, error in errors.items():
            self._tell(Looked(self._rank, id_, [], error))

    def _moved(self, orders: Sequence[Order], errors: dict[int, str]) -> None:
        if orders:
            self._tell(Moved(self._rank, [order.id for order in orders], errors))

    def _watch(self) -> None:
        """Say what takes too long; who waits for it goes on without."""
        timeout_s = self._settings.timeout_s
        while not self._ended.wait(min(1.0, timeout_s / 4)):
            if (
                not self._is_open
                and self._asked_s is not None
                and time.monotonic() - self._asked_s > timeout_s
            ):
                self._say_open()  # what the store has will be known later
            if self._is_open and time.monotonic() > self._survey_s:
                self._survey_s = math.inf  # it is said anew when that has been done
                self._writes.put([], self._survey)
            late = [each for lane in self._lanes for each in lane.late(timeout_s)]
            if late:
                self._tell(Late(self._rank, late))

    def _tell(self, told: Told) -> None:
        self._send(_encode(told))


def _times_filled(model: Any) -> int:
    """Return what models say whose weights can be written again."""
    return int(getattr(model, "times_filled", 0))
