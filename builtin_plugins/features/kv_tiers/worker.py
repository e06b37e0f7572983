"""Worker half: moves blocks between the cache and a store, in threads parallel to the steps."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from builtin_plugins.features.kv_tiers.cache_blocks import (
    CacheBlocks,
    fingerprint_of,
    layout_facts,
)
from builtin_plugins.features.kv_tiers.checksum import checksummer_for
from builtin_plugins.features.kv_tiers.errors import WEIGHTS_CHANGED, ChecksumMismatch, Gone
from builtin_plugins.features.kv_tiers.messages import (
    NAME,
    BlocksFound,
    BlockTransfer,
    LookupRequest,
    LookupResult,
    StoreOpened,
    TransferPlan,
    TransfersDone,
    TransfersTimedOut,
    WeightsReloaded,
    WorkerMessage,
)
from builtin_plugins.features.kv_tiers.transfer_thread import CacheLock, TransferThread
from builtin_plugins.kv_connectors.api import (
    BlockKey,
    Damaged,
    KVConnector,
    KVTransferConfig,
    StoreParts,
)
from core.api import EngineConfig, ModelError
from core.api.execution import LoadedParts, WorkerParts
from core.model_spec.kv import CrossAttention

log = logging.getLogger(__name__)
SURVEY_SHARE: Final = 1 / 16
"""Share of the store's capacity that is written between two surveys."""
FOUND_PER_MESSAGE: Final = 4096
CLOSE_S: Final = 3.0
CHECKSUM_DIFFERS: Final = "the checksum of the block differs"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TransferPlan).decode


class KVTierWorker:
    """Executes the plans of the scheduler half, and reports the result of each transfer."""

    def __init__(
        self, connector: KVConnector, settings: KVTransferConfig, name: str = NAME
    ) -> None:
        self.name = name
        self._connector = connector
        self._settings = settings
        self._threads: tuple[TransferThread[Any], ...] = ()
        self._closed = threading.Event()
        self._first_plan_s: float | None = None
        """Time of the first plan, by the monotonic clock."""
        self._is_open = False
        self._weights_version = 0
        """Weight reloads since the start."""
        self._drop_failed = False
        """True once a drop has failed. Only the first failure is logged."""
        self._unsurveyed_bytes = 0
        """Bytes written since the last survey."""
        self._next_survey_s = math.inf
        """Time of the next periodic survey, by the monotonic clock."""

    def loaded(self, parts: LoadedParts) -> list[Any]:
        """Remember the attention backend. Raises `ModelError` for cross attention."""
        if any(isinstance(layer.spec, CrossAttention) for layer in parts.model.kv_layers):
            raise ModelError(
                "--kv-transfer-config: got a model with cross attention; its cache depends on the "
                "encoder input, not only on tokens. Remove the flag."
            )
        self._backend = parts.context.attention
        return []

    def host_bytes(self, model: Any, config: EngineConfig) -> int:
        """Return the host memory that the connector may take."""
        return self._connector.host_bytes(model, config)

    def attach(self, parts: WorkerParts) -> None:
        """Open the store. Raises `ConfigError` if it cannot work."""
        group = parts.group
        pipeline = parts.pipeline
        layout = parts.layout
        self._rank = pipeline.rank * group.size + group.rank
        num_ranks = pipeline.size * group.size
        facts = layout_facts(
            parts.config, layout, self._backend, parts.device, self._rank, num_ranks
        )
        self._outgoing = CacheBlocks(layout, parts.memory)
        self._incoming = CacheBlocks(layout, parts.memory)
        self._block_bytes = self._outgoing.block_bytes
        self._checksummer = checksummer_for(parts.device)
        self._send_bytes = parts.send
        self._model = parts.model
        self._initial_version = _weights_version_of(parts.model)
        store_parts = StoreParts(
            layout, self._rank, num_ranks, fingerprint_of(facts), self._block_bytes, facts
        )
        self._store: Any = self._connector.store(store_parts)
        self._is_memory = hasattr(self._store, "locate")
        directory = self._connector.directory(layout, group.size)
        self._survey_bytes = int(directory.capacity_bytes * SURVEY_SHARE)
        self._reads = TransferThread("kv-read", self._read, self._on_done)
        self._writes = TransferThread("kv-write", self._write, self._on_done)
        self._threads = self._reads, self._writes
        if hasattr(self._store, "lookup"):
            self._lookups = TransferThread("kv-look", self._look_up, self._on_lookups_done)
            self._threads += (self._lookups,)
        threading.Thread(target=self._watch, name="kv-watch", daemon=True).start()

    def begin(self, payload: bytes | None) -> None:
        """Execute the step's plan. The first plan also opens the store."""
        version = _weights_version_of(self._model) - self._initial_version
        if version != self._weights_version:
            self._weights_version = version
            self._send(WeightsReloaded(self._rank, version, os.urandom(16)))
        if payload is not None:
            if self._first_plan_s is None:
                self._first_plan_s = time.monotonic()
                self._writes.put([], self._open)
            self._execute(_decode(payload))

    def _execute(self, plan: TransferPlan) -> None:
        if plan.weights_version != self._weights_version:
            outdated = [*plan.reads, *plan.writes]
            errors = dict.fromkeys((item.id for item in outdated), WEIGHTS_CHANGED)
            self._on_done(outdated, errors)
            plan = TransferPlan(drops=plan.drops, lookups=plan.lookups)
        if plan.reads:
            self._reads.put(plan.reads)
        if plan.writes or plan.drops:
            self._writes.put(plan.writes, lambda: self._drop(plan.drops))
        if plan.lookups:
            self._lookups.put(plan.lookups)

    def close(self) -> None:
        """Finish queued transfers for up to `CLOSE_S` each thread, then end."""
        self._closed.set()
        ended = [thread.close(CLOSE_S) for thread in self._threads]
        if ended and all(ended):
            self._store.close()
        self._threads = ()

    # --- in the transfer threads

    def _open(self) -> None:
        self._survey()
        self._report_open()

    def _report_open(self) -> None:
        self._is_open = True
        self._send(StoreOpened(self._rank))

    def _survey(self) -> None:
        self._unsurveyed_bytes = 0
        self._next_survey_s = time.monotonic() + getattr(self._store, "survey_s", math.inf)
        try:
            found = list(self._store.survey())
        except Exception:
            log.exception("the KV connector %s cannot list its blocks", self._settings.kv_connector)
            return
        for start in range(0, len(found), FOUND_PER_MESSAGE):
            self._send(BlocksFound(self._rank, found[start : start + FOUND_PER_MESSAGE]))

    def _drop(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            try:
                self._store.drop(key)
            except Exception as error:  # noqa: BLE001 - stores may raise anything
                if not self._drop_failed:
                    log.warning(
                        "the KV connector %s cannot drop blocks: %s",
                        self._settings.kv_connector,
                        error,
                    )
                self._drop_failed = True

    def _write(self, item: BlockTransfer, cache_lock: CacheLock) -> None:
        key = item.key
        if self._is_memory:
            with cache_lock():
                block = self._outgoing.read_block(key.group, item.block)
                buffer = self._store.allocate(key)
                checksum = self._checksummer.copy(key, block, block.sizes.split(buffer))
            self._store.commit(key, buffer, checksum)
        else:
            with cache_lock():
                block = self._outgoing.read_block(key.group, item.block)
                checksum = self._checksummer.checksum(key, block, self._store.checksum)
            # Without the lock the transfer may time out, and its block may get new contents.
            # Then the written bytes do not match the checksum.
            self._store.write(key, block.arrays(), checksum)
        self._unsurveyed_bytes += self._block_bytes[key.group]
        if self._unsurveyed_bytes > self._survey_bytes:
            self._survey()

    def _read(self, item: BlockTransfer, cache_lock: CacheLock) -> None:
        key = item.key
        incoming = self._incoming
        if item.source or self._is_memory:
            if item.source:
                buffer, expected = self._store.fetch(item.source, key)
            else:
                buffer, expected = self._store.locate(key)
            with cache_lock():
                target = incoming.destination(key.group, item.block)
                source = target.sizes.split(buffer)
                if self._checksummer.copy(key, source, target) != expected:
                    for part in target.arrays():
                        part.fill(0)  # damaged bytes may be NaN, and attention reads whole blocks
                    if item.source:
                        raise ChecksumMismatch(CHECKSUM_DIFFERS)
                    raise Damaged(CHECKSUM_DIFFERS)
                incoming.commit(key.group, item.block)
            return
        staging = incoming.staging(key.group)
        try:
            expected = self._store.read(key, staging.arrays())
        except FileNotFoundError as error:
            raise Gone(str(error)) from error
        if expected != self._checksummer.checksum(key, staging, self._store.checksum):
            raise Damaged(CHECKSUM_DIFFERS)
        with cache_lock():
            incoming.write_staged(key.group, item.block)

    def _look_up(self, item: LookupRequest, _: CacheLock) -> None:
        found = [*self._store.lookup(item.keys)]
        self._send(LookupResult(self._rank, item.id, found))

    def _on_lookups_done(self, items: Sequence[LookupRequest], errors: dict[int, str]) -> None:
        for id_, error in errors.items():
            self._send(LookupResult(self._rank, id_, [], error))

    def _on_done(self, items: Sequence[BlockTransfer], errors: dict[int, str]) -> None:
        if items:
            self._send(TransfersDone(self._rank, [item.id for item in items], errors))

    def _watch(self) -> None:
        """Report timed-out transfers, and start periodic surveys."""
        timeout_s = self._settings.timeout_s
        while not self._closed.wait(min(1.0, timeout_s / 4)):
            if (
                not self._is_open
                and self._first_plan_s is not None
                and time.monotonic() - self._first_plan_s > timeout_s
            ):
                self._report_open()  # the survey goes on, and reports its blocks later
            if self._is_open and time.monotonic() > self._next_survey_s:
                self._next_survey_s = math.inf  # until this survey has run
                self._writes.put([], self._survey)
            expired = [id_ for thread in self._threads for id_ in thread.time_out(timeout_s)]
            if expired:
                self._send(TransfersTimedOut(self._rank, expired))

    def _send(self, message: WorkerMessage) -> None:
        self._send_bytes(_encode(message))


def _weights_version_of(model: Any) -> int:
    """Return how often the model's weights were loaded again; 0 for fixed weights."""
    return int(getattr(model, "weights_version", 0))
