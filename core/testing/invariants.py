"""Invariants of scheduler, KV manager and block pools that hold between calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from core.kv import KVManager
from core.kv.layout import NULL_BLOCKS
from core.kv.lease import Lease
from core.kv.pool import BlockPool
from core.scheduler.batch import RunningBatch
from core.scheduler.request import Request, State


def check_scheduler(scheduler: Any) -> None:
    """Assert that every request is in one state and every lease has one holder."""
    life = scheduler._life
    batch = life.batch
    running = batch.running
    num_held = len(running) + len(life.parked) + len(life.queue)
    assert len(life.live) == num_held, "a request is in no state or in two"
    for request in life.live.values():
        name = request.request_id
        waiting = request.state in (State.WAITING, State.PARKED)
        assert waiting == (request.row < 0), f"{name}: row and state disagree"
        holds = any(request.lease.tables) and request.reserved is None
        assert not (waiting and holds), f"{name}: waits and holds blocks without a reservation"
    has_request = [batch.at(row) is not None for row in range(batch.rows.num_rows)]
    assert batch.columns.live.tolist() == has_request, "a row lives without a request"
    for request in running:
        _check_running(batch, request)
    ranks = [r.rank for r in batch.prompts]
    assert ranks == sorted(ranks), "prompts are out of order"
    _check_rows(batch, [request.row for request in running], scheduler._planner._ended)
    pinned = (lease for lease, _ in life.pinned.values())
    check_kv(life.kv, [*(request.lease for request in life.live.values()), *pinned])
    assert len(scheduler._in_flight) <= scheduler.depth, "more plans in flight than the depth"


def _check_running(batch: RunningBatch, request: Request) -> None:
    columns = batch.columns
    row = request.row
    name = request.request_id
    planned = int(columns.planned[row])
    total = int(columns.total[row])
    known = int(columns.known[row])
    reach = planned + columns.num_unverified[row]
    capacity = columns.capacity[row]
    assert batch.at(row) is request, f"{name}: another request has its row"
    assert known <= total <= request.limit, f"{name}: planned beyond its end"
    assert planned < total, f"{name}: computes an unknown token"
    assert reach <= columns.last_cached_position[row], f"{name}: drafts beyond its end"
    assert planned <= capacity == request.lease.capacity, f"{name}: has no KV slots"
    is_prompt = request in batch.prompts
    assert is_prompt == (planned + 1 < total), f"{name}: wrongly in or out of the prompts"


def _check_rows(batch: RunningBatch, held: Sequence[int], ended: Sequence[int]) -> None:
    """Assert that every row is held once, leaving or free."""
    rows = batch.rows
    leaving = [row for _, row in rows._leaving]
    found = sorted([*held, *rows._free, *leaving])
    assert found == list(range(rows.num_rows)), "a row is lost or held twice"
    assert not set(ended) & set(held), "a row is announced as ended and held"


def check_kv(kv: KVManager, leases: Iterable[Lease]) -> None:
    """Assert that all references are of these leases or of steps in flight."""
    expected = [[0] * pool.num_blocks for pool in kv.pools]
    for lease in leases:
        for group, table, low in zip(kv._groups, lease.tables, lease.first, strict=True):
            for block in _held_blocks(table, low):
                expected[group.pool][block] += 1
    for _, pool, blocks in kv._deferred:
        for block in blocks:
            expected[pool][block] += 1
    for block_pool, refs in zip(kv.pools, expected, strict=True):
        check_pool(block_pool, refs)


def _held_blocks(table: list[int], low: int) -> list[int]:
    """Return the blocks of a table; asserts that it is consistent."""
    assert not any(table[:low]), "a block outside the window is still held"
    held = [block for block in table[low:] if block]
    assert len(held) == len(table) - low, "a null block inside the window"
    assert len(set(held)) == len(held), "a block stands twice in one table"
    return held


def check_pool(pool: BlockPool, expected_refs: Sequence[int]) -> None:
    """Assert that the counts are `expected_refs` and agree with free queue and keys."""
    assert pool.refs == list(expected_refs), "reference counts differ from the leases"
    assert pool.refs[0] == 0, "the null block was allocated"
    used = range(NULL_BLOCKS, pool._next_fresh)
    free = {block for block in used if not pool.refs[block]}
    assert free == set(pool.free_queue), "the free queue differs from the unreferenced blocks"
    num_fresh = pool.num_blocks - pool._next_fresh
    assert pool.num_free == len(free) + num_fresh, "the number of free blocks is wrong"
    maps = pool._blocks_by_key.items()
    by_key = {(group, key): block for group, cached in maps for key, block in cached.items()}
    by_block = {entry: b for b, entry in enumerate(pool._keys) if entry is not None}
    assert by_key == by_block, "keys and maps disagree"
