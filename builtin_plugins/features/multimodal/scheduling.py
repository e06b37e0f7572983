"""Scheduler half: decides what is encoded in a step, and what the encoder caches hold.

It alone decides, so all ranks have equal caches. A chunk of a prompt ends before the first item
that the step cannot encode and, where an item's tokens see each other, before one that does not fit
as a whole.

Next to decode rows, an item is encoded at least one step before its tokens are computed, a large
one in parts: one step never takes the time of both, or all of a large item's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from builtin_plugins.features.multimodal.encode_ahead import EncodeAhead
from builtin_plugins.features.multimodal.encoder_cache import Counters, EncoderCache
from builtin_plugins.features.multimodal.messages import (
    NAME,
    AheadItem,
    ItemRun,
    RequestItem,
    RequestItems,
    StepItems,
)
from builtin_plugins.features.multimodal.settings import Settings
from builtin_plugins.features.multimodal.store import TensorStore, leave_folder
from core.api import PluginError, RequestFailed
from core.api.execution import StepPlan
from core.api.features import RunningRows

MAX_IN_FLIGHT: Final = 4
"""Steps after which the worker halves have read what a step names."""
_decode = msgspec.msgpack.Decoder(RequestItems).decode
_encode = msgspec.msgpack.Encoder().encode


class EncoderScheduler:
    """Owns the encoder cache of all ranks."""

    name = NAME

    def __init__(self, settings: Settings) -> None:
        self._settings: Final = settings
        self._requests: dict[str, tuple[Any, RequestItems]] = {}
        """Open requests with items: the scheduler's record, and the items."""
        self._holders: dict[str, tuple[TensorStore, set[str]]] = {}
        """Open requests by holder: the sequences of one request share it."""
        self._folders: set[str] = set()
        """Folders of the stores that requests came from."""
        self.counters: Final = Counters()
        self._cache: Final = EncoderCache(settings.cache_tokens, self.counters)
        self._ahead: Final = EncodeAhead(settings, self._cache)
        self._planned: dict[bytes, int] = {}
        """Items that chunks of the step under construction need encoded."""
        self._pauses_decodes = False
        """Whether a run of tokens waits for a step without decode rows: the budget of steps
        with decode rows may be smaller than the run.
        """
        self._prompts: set[str] = set()
        """Requests with items in chunks that have not been planned."""
        self._num_decode_rows = 0
        """Decode rows of the step under construction."""
        self._entering: dict[str, int] = {}
        """Embeddings that each request reads as it enters the step under construction."""
        self._ahead_steps: dict[str, int] = {}
        """Number of the last step that encodes an item ahead, by holder."""
        self._ending: deque[tuple[int, TensorStore, str]] = deque()
        """Ended requests with tensors that a step in flight may read: (number of the step
        before which they ended, store, holder).
        """
        self._num_steps = 0

    # --- requests

    def arrived(self, request: Any) -> None:
        """Note the items of a request. Raises `PluginError` if they have been released."""
        data = request.features.get(NAME)
        if data is None:
            return
        items = _decode(data)
        if items.holder not in self._holders:
            store = TensorStore(items.folder)
            self._folders.add(items.folder)
            try:
                store.adopt(items.holder)
            except OSError as error:
                raise _released() from error
            self._holders[items.holder] = store, set()
            self.counters.processed += len(items.items)
            self.counters.known += sum(item.was_known for item in items.items)
        self._requests[request.request_id] = request, items
        self._prompts.add(request.request_id)
        self._holders[items.holder][1].add(request.request_id)

    def finished(self, request: Any) -> bool:
        """Forget the items of a request; release their tensors with its last sequence."""
        _, items = self._requests.pop(request.request_id, (None, None))
        if items is not None:
            self._prompts.discard(request.request_id)
            self._entering.pop(request.request_id, None)
            for item in items.items:
                self._cache.release(item.content_hash)
            store, sequences = self._holders[items.holder]
            sequences.discard(request.request_id)
            if not sequences:
                del self._holders[items.holder]
                self._ahead.released(items.holder)
                ahead_step = self._ahead_steps.pop(items.holder, -MAX_IN_FLIGHT)
                if _may_be_read(request) or self._num_steps - ahead_step < MAX_IN_FLIGHT:
                    self._ending.append((self._num_steps, store, items.holder))
                else:
                    store.release(items.holder)
        return False

    # --- steps

    def prefill_chunk(self, request: Any, start: int, count: int) -> int:
        """Return how many of the tokens can be computed with the items that a step may encode."""
        _, items = self._requests.get(request.request_id, (None, None))
        if items is None:
            return count
        if items.at_start:
            return count if self._may_enter(request, items) else 0
        end = start + count
        is_whole = bool(items.look_ahead) or self._settings.whole_items
        for first, stop in _units(items):
            needed = [item for item, _ in _runs_between(items, max(first, start), min(stop, end))]
            if first >= end or stop <= start:
                continue
            if self._defer(request, items, needed):
                end = max(start, first)
                break
            is_cut = is_whole and stop > end
            self._pauses_decodes |= is_cut and first <= start
            if is_cut or not self._may_encode(needed):
                end = max(start, first)
                break
        return end - start

    def _may_enter(self, request: Any, items: RequestItems) -> bool:
        """Return whether a request may start in this step with the items that it may encode."""
        if request.row >= 0:
            return True
        own = items.items
        self._entering.pop(request.request_id, None)  # of an attempt that got no blocks
        total = sum(self._entering.values()) + items.num_embeddings
        is_full = bool(self._entering) and total > self._settings.step_tokens
        if is_full or self._defer(request, items, own) or not self._may_encode(own):
            return False
        self._entering[request.request_id] = items.num_embeddings
        return True

    def is_active(self) -> bool:
        """Return whether the next step may have chunks with items, or has no decode rows."""
        return self._pauses_decodes or bool(self._prompts)

    def limits(self, rows: RunningRows) -> dict[int, int]:
        """Note the decode rows. Return a limit of no tokens for all of them if a run waits."""
        self._planned.clear()  # of a step that got no blocks, too
        self._entering.clear()
        self._ahead.begin()
        self._num_decode_rows = 0 if self._pauses_decodes else len(rows.rows)
        limits = dict.fromkeys(rows.rows.tolist(), 0) if self._pauses_decodes else {}
        self._pauses_decodes = False
        return limits

    def _defer(self, request: Any, items: RequestItems, needed: Sequence[RequestItem]) -> bool:
        """Have missing items encoded in this step for a chunk of a later one.

        False without decode rows, for items that do not fit the cache together, and for requests
        that were preempted: they may wait for the last decode row.
        """
        missing = {each.content_hash: each for each in needed if self._is_missing(each)}
        if not missing or not self._num_decode_rows or request.request_id not in self._prompts:
            return False
        if not self._cache.reserve({item.content_hash: item.num_tokens for item in needed}):
            return False
        for item in missing.values():
            self._ahead.defer(AheadItem(items.folder, items.holder, item))
        return True

    def _may_encode(self, items: Sequence[RequestItem]) -> bool:
        """Plan to encode items, unless they are cached; False if the step's budget is used up."""
        missing = {each.content_hash: each.num_tokens for each in items if self._is_missing(each)}
        used = sum(self._planned.values())
        if missing and used and used + sum(missing.values()) > self._settings.step_tokens:
            return False
        self._planned |= missing
        return True

    def _is_missing(self, item: RequestItem) -> bool:
        """Return whether an item is neither cached nor planned to be encoded."""
        return item.content_hash not in self._cache and item.content_hash not in self._planned

    def planned(self, plan: StepPlan) -> bytes | None:
        """Return what the worker halves encode and drop for the chunks of a step."""
        self._planned.clear()
        self._entering.clear()
        self._num_steps += 1
        self._release_ended()
        if not self._requests and not self._ahead.given_up:
            return None
        needed = self._needed(plan) if plan.rows else {}
        encode = self._cache.need(needed)
        used = sum(needed[key] for key in encode)
        waiting = (items for request, items in self._requests.values() if request.row < 0)
        is_mixed = self._num_decode_rows > 0
        ahead = self._ahead.choose(used, sum(needed.values()), waiting, is_mixed=is_mixed)
        if not needed and not ahead and not self._ahead.given_up:
            return None
        for each in ahead:
            if each.is_last:
                encode.append(each.item.content_hash)
            self._ahead_steps[each.holder] = self._num_steps
        drop = [*self._ahead.given_up, *self._cache.evict({*needed, *encode})]
        self._ahead.given_up.clear()
        return _encode(StepItems(encode, drop, ahead))

    def _release_ended(self) -> None:
        """Release the tensors of ended requests that no step in flight reads."""
        while self._ending and self._num_steps - self._ending[0][0] > MAX_IN_FLIGHT:
            _, store, holder = self._ending.popleft()
            store.release(holder)

    def _needed(self, plan: StepPlan) -> dict[bytes, int]:
        """Return the items of a step's chunks, with their numbers of embeddings."""
        needed: dict[bytes, int] = {}
        new_rows = {new.row for new in plan.new}
        by_row = {request.row: (request, items) for request, items in self._requests.values()}
        for row, start, count in zip(plan.rows, plan.starts, plan.counts, strict=True):
            if row in by_row:
                request, items = by_row[row]
                found = _items_of_chunk(items, start, start + count, enters=row in new_rows)
                needed |= {item.content_hash: item.num_tokens for item in found}
                if start + count >= request.prompt_len:
                    self._prompts.discard(request.request_id)
        return needed

    def close(self) -> None:
        """Leave the stores of API servers."""
        for folder in self._folders:
            leave_folder(Path(folder))

    # --- calls and metrics

    def call(self, verb: str, data: bytes) -> bytes | None:
        """Return the counters as JSON (`multimodal.counters`)."""
        return msgspec.json.encode(self.counters) if verb == "counters" else None

    def gauges(self) -> dict[str, float]:
        """Return counters and gauges by metric name."""
        return {**self.counters.gauges(), "mm_encoder_cache_tokens": self._cache.num_tokens}


def _released() -> PluginError:
    """Return the error of a request that arrives without its items."""
    failed = RequestFailed(
        "multi_modal_data: its items were released before the request arrived. Send it again."
    )
    return PluginError(str(failed), NAME, failed)


def _may_be_read(request: Any) -> bool:
    """Return whether a step in flight may read the tensors of a request that has ended.

    They are read in the steps of its prompt. Once it has a token, these have returned, unless it
    was preempted and starts again.
    """
    has_token = request.num_tokens > request.prompt_len
    return bool(request.last_step) and (not has_token or request.num_preemptions > 0)


def _units(items: RequestItems) -> list[tuple[int, int]]:
    """Return the runs of tokens of which a step needs all items, in order."""
    runs = [(run.start, run.start + run.length) for item in items.items for run in item.runs]
    return sorted(items.units() or runs)


def _items_of_chunk(
    items: RequestItems, start: int, end: int, *, enters: bool
) -> Sequence[RequestItem]:
    """Return the items that a chunk of a prompt needs; `enters`: it is the request's first."""
    if items.at_start:
        return items.items if enters else ()
    return [item for item, _ in _runs_between(items, start, end)]


def _runs_between(items: RequestItems, start: int, end: int) -> list[tuple[RequestItem, ItemRun]]:
    """Return the runs of placeholder tokens with positions from `start` up to `end`, in order."""
    return sorted(
        (
            (item, run)
            for item in items.items
            for run in item.runs
            if run.start < end and run.start + run.length > start
        ),
        key=lambda pair: pair[1].start,
    )
