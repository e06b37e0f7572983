"""Scheduling half: parks requests until their adapter is in a slot, and handles calls.

A request holds its adapter from its start to its end, so a slot is reassigned only when no request
uses it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from builtin_plugins.features.lora.adapter_cache import AdapterCache, HostAdapter
from builtin_plugins.features.lora.messages import AdapterRef, AdapterStatus, LoadResult
from builtin_plugins.features.lora.settings import NAME
from core.api import InvalidRequest, QueueFull, RequestFailed
from core.api.execution import StepPlan

MAX_QUEUE_JUMP_STEPS: Final = 64
"""Steps for which requests with resident adapters may overtake one that waits for a slot."""
MAX_FAILURES: Final = 64
_encode = msgspec.msgpack.Encoder().encode
_decode_result = msgspec.msgpack.Decoder(LoadResult).decode
_decode_ref = msgspec.msgpack.Decoder(AdapterRef).decode


class AdapterSlots:
    """Parks requests until their adapter is in a slot."""

    name = NAME

    def __init__(self, max_loras: int, max_cpu_loras: int, num_ranks: int) -> None:
        self._cache = AdapterCache(max_loras, max_cpu_loras)
        self._num_ranks = num_ranks
        self._waiting: dict[str, tuple[bytes, int]] = {}
        """Parked requests, oldest first: (adapter digest, step since which it waits)."""
        self._failed: dict[bytes, str] = {}
        self._errors: dict[str, str] = {}
        """Errors of requests, reported when they end."""
        self._rows_with_adapter: set[int] = set()
        self._step = 0

    def attach(self, scheduler: Any) -> None:
        """Set the scheduler."""
        self._scheduler = scheduler

    # --- requests

    def may_start(self, request: Any) -> bool:
        """Return whether a request may start: its adapter is in a slot.

        Raises `RequestFailed` if it never will be.
        """
        data = request.features.get(NAME)
        request_id = request.request_id
        if data is None:
            return True
        if request_id in self._errors:
            raise RequestFailed(self._errors[request_id])
        ref = _decode_ref(data)
        adapter = self._cache.adapters.get(ref.digest) or self._cache.start_load(ref)
        if adapter is not None and request_id in adapter.holders:
            return True
        self._check_pins(adapter)
        since = self._waiting.pop(request_id, (b"", self._step))[1]
        if (
            adapter is not None
            and adapter.ready
            and self._may_go_first(since, adapter)
            and self._cache.assign_slot(adapter)
        ):
            self._cache.hold(adapter, request_id)
            return True
        if adapter is not None:
            adapter.waiting.add(request_id)
        self._waiting[request_id] = ref.digest, since
        return False

    def _check_pins(self, adapter: HostAdapter | None) -> None:
        """Raise `RequestFailed` if pinned adapters occupy everything that could become free."""
        pinned = self._cache.num_pinned
        if adapter is None and pinned >= self._cache.max_adapters:
            raise RequestFailed(
                "--max-cpu-loras: all adapters in host memory are pinned. Remove one."
            )
        if adapter is not None and adapter.slot < 0 and pinned >= self._cache.num_slots:
            raise RequestFailed("--max-loras: the adapters of all slots are pinned. Remove one.")

    def _may_go_first(self, since: int, adapter: HostAdapter) -> bool:
        """Return whether a request may start now; False if a much older one would wait longer."""
        for digest, step in self._waiting.values():
            other = self._cache.adapters.get(digest)
            if digest != adapter.ref.digest and (other is None or other.ready):
                return not (step < since and self._step - step > MAX_QUEUE_JUMP_STEPS)
        return True

    def finished(self, request: Any) -> bool:
        """Release the adapter; report an error that the adapter caused."""
        data = request.features.get(NAME)
        request_id = request.request_id
        if data is None:
            return False
        error = self._errors.pop(request_id, "")
        if error:
            request.feature_outputs[NAME] = error.encode()
        self._waiting.pop(request_id, None)
        adapter = self._cache.adapters.get(_decode_ref(data).digest)
        if adapter is not None:
            adapter.holders.discard(request_id)
            adapter.waiting.discard(request_id)
        self._wake()
        return False

    def _wake(self) -> None:
        """Wake parked requests that may start now, oldest first, for the free slots."""
        idle = self._cache.num_idle_slots
        has_room = self._cache.has_room
        chosen: set[bytes] = set()
        for request_id, (digest, _) in list(self._waiting.items()):
            adapter = self._cache.adapters.get(digest)
            if adapter is None and has_room:
                self._scheduler.wake(request_id)
            elif adapter is not None and adapter.ready:
                if adapter.slot < 0 and digest not in chosen and len(chosen) >= idle:
                    continue
                chosen.add(digest)
                self._scheduler.wake(request_id)

    # --- steps

    def pending(self) -> bool:
        """Return whether workers have loads or drops to start."""
        return self._cache.has_loads

    def planned(self, plan: StepPlan) -> bytes | None:
        """Return the step's update: loads, drops, slots, and rows with their slots."""
        self._step = plan.step
        if not (plan.new or self._cache.has_updates):
            return None
        rows = []
        for new in plan.new:
            data = new.features.get(NAME)
            if data is not None:
                rows.append((new.row, self._cache.adapters[_decode_ref(data).digest].slot))
                self._rows_with_adapter.add(new.row)
            elif new.row in self._rows_with_adapter:
                rows.append((new.row, -1))
                self._rows_with_adapter.discard(new.row)
        if not (rows or self._cache.has_updates):
            return None
        return _encode(self._cache.take_update(rows))

    def result(self, payload: bytes) -> None:
        """Record a rank's load result; after the last rank, wake or fail the waiting requests."""
        result = _decode_result(payload)
        adapter = self._cache.adapters.get(result.digest)
        if adapter is None or adapter.ready:
            return
        adapter.results[result.rank] = result
        if len(adapter.results) < self._num_ranks:
            return
        error = next((each.error for each in adapter.results.values() if each.error), "")
        unmatched = set.intersection(*(set(each.unmatched) for each in adapter.results.values()))
        if not error and unmatched:
            listed = sorted(unmatched)
            more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
            error = (
                f"the model has no target for {', '.join(map(repr, listed[:3]))}{more}: it was "
                "trained on another model."
            )
        if error:
            self._fail(adapter, error)
        else:
            adapter.ready = True
            adapter.requested = False
        self._wake()

    def _fail(self, adapter: HostAdapter, error: str) -> None:
        digest = adapter.ref.digest
        name = adapter.ref.name
        for request_id in adapter.waiting:
            self._errors[request_id] = f"adapter {name!r:.100}: {error}"
            self._waiting.pop(request_id, None)
            self._scheduler.wake(request_id)
        self._failed[digest] = error
        while len(self._failed) > MAX_FAILURES:
            del self._failed[next(iter(self._failed))]
        self._cache.evict(adapter)

    # --- calls

    def call(self, verb: str, data: bytes) -> bytes | None:
        """Handle a call: `load`, `unload` or `pin` an adapter (`AdapterRef`), or `list` all.

        Raises `InvalidRequest` and `QueueFull`.
        """
        if verb == "list":
            return self._statuses()
        if verb not in ("load", "unload", "pin"):
            return None
        ref = _decode_ref(data)
        adapter = self._cache.adapters.get(ref.digest)
        if verb == "load":
            self._failed.pop(ref.digest, None)
            if adapter is None:
                adapter = self._cache.start_load(ref)
                if adapter is None:
                    raise QueueFull(
                        f"all {self._cache.max_adapters} adapters of --max-cpu-loras are in use. "
                        "Try "
                        "again later."
                    )
                adapter.requested = True
                self._cache.forget_load(ref)
        elif verb == "pin":
            if adapter is None or not adapter.ready or not self._cache.assign_slot(adapter):
                raise InvalidRequest(
                    "lora_name",
                    f"{ref.name!r:.100} cannot be pinned: it is not loaded, or no slot is free.",
                )
            adapter.pinned = True
        elif adapter is not None:
            adapter.pinned = adapter.requested = False
            if adapter.is_free and adapter.ready:
                self._cache.evict(adapter)
        self._wake()
        return self._statuses()

    def info(self) -> dict[str, str]:
        """Return the labels of `lora_requests_info`, by vLLM's names."""
        waiting = {digest for digest, _ in self._waiting.values()}
        running = sorted(each.ref.name for each in self._cache.adapters.values() if each.holders)
        return {
            "max_lora": str(self._cache.num_slots),
            "running_lora_adapters": ",".join(running),
            "waiting_lora_adapters": ",".join(
                sorted(
                    each.ref.name
                    for digest, each in self._cache.adapters.items()
                    if digest in waiting
                )
            ),
        }

    def _statuses(self) -> bytes:
        listed = [
            AdapterStatus(
                name=each.ref.name,
                digest=each.ref.digest.hex(),
                state="ready" if each.ready else "loading",
                slot=each.slot,
                pinned=each.pinned,
                running=len(each.holders),
                waiting=sum(digest == each.ref.digest for digest, _ in self._waiting.values()),
                num_bytes=sum(result.num_bytes for result in each.results.values()),
            )
            for each in self._cache.adapters.values()
        ]
        listed += [
            AdapterStatus(name="", digest=digest.hex(), state="failed", error=e)
            for digest, e in self._failed.items()
        ]
        return msgspec.json.encode(listed)

    def check(self) -> None:
        """Raise `EngineError` for inconsistent state; for tests."""
        self._cache.check()
