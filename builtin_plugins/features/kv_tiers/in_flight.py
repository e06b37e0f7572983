"""The table of block transfers in flight between the cache and the stores of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builtin_plugins.features.kv_tiers.circuit_breaker import CircuitBreaker
from builtin_plugins.features.kv_tiers.errors import MISMATCH, WEIGHTS_CHANGED
from builtin_plugins.features.kv_tiers.messages import BlockTransfer, TransfersTimedOut
from builtin_plugins.kv_connectors.api import BlockKey


@dataclass(slots=True, eq=False)
class RequestLoad:
    """The blocks that one request waits for."""

    lease_name: str
    """Name of the scheduler's pin on these blocks."""
    request_id: str | None
    """None: the request no longer waits."""
    position: int
    """First position that the device cache lacks."""
    end: int
    """Position after the last loaded block."""
    num_left: int
    """Blocks not read yet."""
    error: str = ""


@dataclass(slots=True, eq=False)
class InFlightTransfer:
    """One block transfer, queued or in flight."""

    transfer: BlockTransfer
    num_bytes: int
    """Bytes on one rank."""
    num_ranks: int
    """Ranks that have not finished it."""
    load: RequestLoad | None
    """The load it belongs to; None for a write."""
    breaker: CircuitBreaker
    """Circuit breaker of the store it uses."""
    error: str = ""
    """First error of a rank."""
    timed_out: bool = False
    """True once a rank exceeded `timeout_s`."""
    invalidated: bool = False
    """True once the cache has invalidated the block's contents."""

    @property
    def failure(self) -> str:
        """Why the block cannot be used; empty: it can."""
        return self.error or ("it was invalidated" if self.invalidated else "")


class InFlightTable:
    """The transfers of one tier, by id."""

    def __init__(self, name: str, block_bytes: Sequence[int], num_ranks: int) -> None:
        """`block_bytes`: bytes of a block on one rank, by KV group."""
        self.num_bytes = 0
        """Bytes in flight on each rank."""
        self._name = name
        self._block_bytes = block_bytes
        self._num_ranks = num_ranks
        self._transfers: dict[int, InFlightTransfer] = {}
        self._timed_out: dict[tuple[int, int], CircuitBreaker] = {}
        """Breakers to notify when a timed-out transfer ends, by rank and id."""
        self._num_ids = 0

    def __len__(self) -> int:
        return len(self._transfers)

    def new_id(self) -> int:
        """Return an unused transfer id."""
        self._num_ids += 1
        return self._num_ids

    def lease_name(self, id_: int) -> str:
        """Return the name of the scheduler's pin for a transfer or load."""
        return f"{self._name}/{id_}"

    def make(
        self,
        key: BlockKey,
        block: int,
        load: RequestLoad | None,
        breaker: CircuitBreaker,
        source: bytes = b"",
    ) -> InFlightTransfer:
        """Return a transfer that has not begun."""
        transfer = BlockTransfer(self.new_id(), key, block, source)
        num_bytes = self._block_bytes[key.group]
        return InFlightTransfer(transfer, num_bytes, self._num_ranks, load, breaker)

    def begin(self, item: InFlightTransfer) -> BlockTransfer:
        """Count a transfer as in flight, and return its message."""
        self._transfers[item.transfer.id] = item
        self.num_bytes += item.num_bytes
        return item.transfer

    def invalidate(self, key: BlockKey) -> None:
        """Mark the transfers of a key as unusable."""
        for item in self._transfers.values():
            item.invalidated |= item.transfer.key == key

    def time_out(self, message: TransfersTimedOut, step: int) -> list[InFlightTransfer]:
        """Return the transfers that a rank reports as timed out.

        Their later results only close the circuit breaker again.
        """
        expired = [self._transfers[id_] for id_ in message.ids if id_ in self._transfers]
        for breaker in dict.fromkeys(item.breaker for item in expired):
            ids = [item.transfer.id for item in expired if item.breaker is breaker]
            breaker.on_timeout(ids, step)
        for item in expired:
            item.timed_out = True
            self._timed_out[message.rank, item.transfer.id] = item.breaker
        return expired

    def rank_done(self, rank: int, id_: int, error: str, step: int) -> InFlightTransfer | None:
        """Count one rank's result. Return the transfer if it was the last rank."""
        breaker = self._timed_out.pop((rank, id_), None)
        if breaker is not None:
            breaker.on_result(id_, error, step)
            return None
        return self.finish_rank(id_, error, step)

    def finish_rank(self, id_: int, error: str, step: int) -> InFlightTransfer | None:
        """Count one rank less on a transfer. Return it if no rank is left."""
        item = self._transfers[id_]
        if not item.error or error.startswith(MISMATCH):  # a mismatch is more specific
            item.error = error
        item.num_ranks -= 1
        if item.num_ranks:
            return None
        del self._transfers[id_]
        self.num_bytes -= item.num_bytes
        if item.error == WEIGHTS_CHANGED:
            item.breaker.on_cancel(id_)
        elif not item.timed_out:  # a timed-out rank reports later, through `rank_done`
            item.breaker.on_result(id_, item.error, step)
        return item
