"""Admits waiting requests to the batch: prefix hits, reservations, and the
first tokens.
"""

from __future__ import annotations

import logging
from typing import Final

from core.contracts.scheduling import MayStart
from core.errors import PluginError
from core.kv import Hit
from core.kv.lease import NO_HIT, KVTrust
from core.logs import RateLimitedLogger
from core.scheduler.lifecycle import Lifecycle
from core.scheduler.plan_builder import PlanBuilder
from core.scheduler.request import Request
from core.step import NewRow

log = logging.getLogger(__name__)

LOOK_AHEAD_TOKENS: Final = 128
"""Tokens that a decode row allocates blocks for at once while blocks are
plentiful.
"""


class BatchAdmission:
    """Starts the requests at the head of the waiting queue, or parks them."""

    def __init__(self, life: Lifecycle) -> None:
        self._life: Final = life
        self._limits: Final = life.limits
        self._kv: Final = life.kv
        self._batch: Final = life.batch
        self._extensions: Final = life.extensions
        self._max_step_tokens: Final = life.limits.max_step_tokens
        self._rate_limited_log: Final = RateLimitedLogger(log)

    def admit_waiting(self, builder: PlanBuilder) -> None:
        """Start waiting requests in rank order, while budget, rows and blocks last."""
        while self._batch.rows.num_free:
            request = self._life.queue.head
            if request is None or not builder.room(request):
                return
            if request.last_step > self._batch.returned:
                return  # its results are in flight
            try:
                if not self._start(builder, request):
                    return
            except PluginError as error:
                if error.is_fault:
                    message = f"{error} Request: {request.request_id!r}."
                    self._rate_limited_log.error(error.client_message(None), message, error)
                failed = self._life.fail(request, error.client_message(request.request_id))
                self._life.failed.append(failed)

    def _start(self, builder: PlanBuilder, request: Request) -> bool:
        """Start or park the head of the queue; False if it must stay there."""
        is_reserved = request.reserved is not None
        trusts_external = request.external_kv is not KVTrust.INVALID
        if is_reserved and not trusts_external:
            self._life.release_reservation(request)
            return True
        total = request.num_tokens
        answer = self._extensions.may_start(request)
        if answer is MayStart.PARK:
            return self._park(request)
        if answer is MayStart.RESERVE and self._kv.capacity.fits(total, total):
            return self._park_with_blocks(request)
        hit = self._hit(request, total)
        num_remote = 0
        if trusts_external:
            num_remote = self._extensions.cached_tokens(request, hit.num_tokens)
        start = min(hit.num_tokens + num_remote, total - 1)
        count = min(total - start, builder.room(request), self._max_step_tokens)
        count = self._extensions.prefill_chunk(request, start, count)
        is_chunk = start + count < total <= self._limits.max_num_batched_tokens
        if count <= 0 or (is_chunk and not self._limits.chunked_prefill):
            return False  # it fits a later step
        lease = request.lease
        if is_reserved:
            self._kv.trim(lease, start)
        else:
            end = self._allocation_end(request, hit, start + count)
            if not self._kv.admit(lease, hit, start, end, total, self._max_step_tokens):
                return False
            if lease.loads and not self._extensions.load(request, lease.loads):
                # woken when its blocks are loaded
                request.reserved = hit.num_tokens
                return self._park(request)
        if num_remote:
            lease.first_unverified = min(lease.first_unverified, hit.num_tokens)
        self._enter_batch(builder, request, start, count)
        return True

    def _hit(self, request: Request, total: int) -> Hit:
        """Return the prefix hit to start from."""
        if request.reserved is not None:
            return Hit(request.reserved, (), request.reserved)
        hit = self._find_hit(request)
        if hit.loads and not self._kv.capacity.fits(total, total):
            return NO_HIT
        return hit

    def _find_hit(self, request: Request) -> Hit:
        if not request.reads_cache:
            return NO_HIT
        max_tokens = request.num_tokens - 1  # at least one token is computed
        return self._kv.find_longest_hit(
            request.lease, request.tokens, max_tokens, tiers=not request.skips_tiers
        )

    def _allocation_end(self, request: Request, hit: Hit, end: int) -> int:
        """Return the tokens to allocate slots for: up to `end`, or further ahead."""
        total = request.num_tokens
        if hit.loads:
            end = total
        if end == total and self._kv.is_plentiful:
            return min(total + LOOK_AHEAD_TOKENS, request.limit - 1)
        return end

    def _enter_batch(self, builder: PlanBuilder, request: Request, start: int, count: int) -> None:
        """Give a request, which has its blocks, a row and its tokens of this step."""
        life = self._life
        if not request.started:
            request.started = True
            request.num_cached = min(start, request.prompt_len)
            life.counters.cached_tokens += request.num_cached
            life.counters.queried_tokens += request.num_tokens
        token_ids = list(request.tokens)
        life.start(request)
        lease = request.lease
        self._batch.columns.capacity[request.row] = lease.capacity
        if lease.trust is KVTrust.PENDING:
            builder.unverified.append(request)
        source = request.source
        new = NewRow(
            row=request.row,
            request_id=source.request_id,
            token_ids=token_ids,
            prompt_len=request.prompt_len,
            sampling=source.sampling,
            seed=source.seed,
            eos_token_ids=source.eos_token_ids,
            blocks=[list(table) for table in lease.tables],
            pooling=source.pooling,
            features=source.features,
            num_encoder_positions=source.num_encoder_positions,
        )
        builder.new.append(new)
        builder.add_prompt(request, start, count)

    def _park(self, request: Request) -> bool:
        self._life.park(request)
        return True

    def _park_with_blocks(self, request: Request) -> bool:
        """Park the first request with all its blocks; False if out of blocks."""
        if request.reserved is None:
            lease = request.lease
            total = request.num_tokens
            hit = self._find_hit(request)
            if not self._kv.admit(lease, hit, hit.num_tokens, total, total, total):
                return False
            request.reserved = hit.num_tokens
            request.external_kv = KVTrust.VERIFIED
            if lease.loads:
                self._extensions.load(request, lease.loads)
            tables = [list(table) for table in lease.tables]
            self._extensions.reserved(request, tables, hit.num_tokens)
        return self._park(request)
