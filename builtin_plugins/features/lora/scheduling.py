"""The scheduler half: which adapters are in host memory and in slots, who holds them, and who waits
for one.

A request holds its adapter from when it may start to its end, so a slot changes hands only when
nobody computes with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from builtin_plugins.features.lora.messages import Held, News, Told, Wanted
from builtin_plugins.features.lora.settings import NAME
from core.api import EngineError, InvalidRequest, QueueFull, RequestFailed, StepPlan

PATIENCE_STEPS: Final = 64
"""For so many steps requests of adapters in slots may start before one that came earlier and waits
for a slot.
"""
KEPT_FAILURES: Final = 64
_encode = msgspec.msgpack.Encoder().encode
_told = msgspec.msgpack.Decoder(Told).decode
_wanted = msgspec.msgpack.Decoder(Wanted).decode


@dataclass(slots=True)
class Adapter:
    """An adapter that is in host memory, or on its way there."""

    wanted: Wanted
    ready: bool = False
    told: dict[int, Told] = field(default_factory=dict)
    """What ranks have said of the load, by rank."""
    slot: int = -1
    holders: set[str] = field(default_factory=set)
    """Requests that may start, or have."""
    waiting: set[str] = field(default_factory=set)
    pinned: bool = False
    asked: bool = False
    """It was asked for by name, so it is loaded though no request waits."""
    used: int = 0
    """Turn of its last use: the one with the smallest goes first."""

    @property
    def is_free(self) -> bool:
        """Nobody holds or awaits it, so its place may be another's."""
        return not (self.holders or self.waiting or self.pinned or self.asked)


class Slots:
    """Parks requests until their adapter is in a slot."""

    name = NAME

    def __init__(self, max_loras: int, max_held: int, num_ranks: int) -> None:
        self._max_held = max_held
        self._num_ranks = num_ranks
        self._adapters: dict[bytes, Adapter] = {}
        self._slots: list[bytes] = [b""] * max_loras
        """Digests; empty: nothing was ever in it."""
        self._waiting: dict[str, tuple[bytes, int]] = {}
        """Parked requests, the earliest first: their adapter, and the step since which they wait
        for room.
        """
        self._failed: dict[bytes, str] = {}
        self._errors: dict[str, str] = {}
        """Of requests that are to be told why."""
        self._load: list[Wanted] = []
        self._drop: list[bytes] = []
        self._put: list[tuple[int, bytes]] = []
        self._adapted_rows: set[int] = set()
        self._step = self._turn = 0

    def attach(self, scheduler: Any) -> None:
        """Remember whom to wake."""
        self._scheduler = scheduler

    # --- requests

    def may_start(self, request: Any) -> bool:
        """Let it start once its adapter is in a slot. Raises why there will be none."""
        data = request.features.get(NAME)
        request_id = request.request_id
        if data is None:
            return True
        if request_id in self._errors:
            raise RequestFailed(self._errors[request_id])
        wanted = _wanted(data)
        adapter = self._adapters.get(wanted.digest) or self._begin(wanted)
        if adapter is not None and request_id in adapter.holders:
            return True
        self._check_pins(adapter)
        since = self._waiting.pop(request_id, (b"", self._step))[1]
        if (
            adapter is not None
            and adapter.ready
            and self._has_turn(since, adapter)
            and self._in_slot(adapter)
        ):
            adapter.waiting.discard(request_id)
            adapter.holders.add(request_id)
            self._turn += 1
            adapter.used = self._turn
            return True
        if adapter is not None:
            adapter.waiting.add(request_id)
        self._waiting[request_id] = wanted.digest, since
        return False

    def _check_pins(self, adapter: Adapter | None) -> None:
        """Raise `RequestFailed` where pinned adapters leave no place that could ever become free."""
        pinned = sum(each.pinned for each in self._adapters.values())
        if adapter is None and pinned >= self._max_held:
            raise RequestFailed(
                "all places of --max-cpu-loras have adapters that are pinned; remove one."
            )
        if adapter is not None and adapter.slot < 0 and pinned >= len(self._slots):
            raise RequestFailed(
                "all slots (--max-loras) have adapters that are pinned; remove one."
            )

    def _has_turn(self, since: int, adapter: Adapter) -> bool:
        """Say whether it may start now: not where one that came much earlier would wait on."""
        for digest, step in self._waiting.values():
            other = self._adapters.get(digest)
            if digest != adapter.wanted.digest and (other is None or other.ready):
                return not (step < since and self._step - step > PATIENCE_STEPS)
        return True

    def _begin(self, wanted: Wanted) -> Adapter | None:
        """Have an adapter loaded; None while there is no room for another."""
        while len(self._adapters) >= self._max_held:
            free = [each for each in self._adapters.values() if each.is_free and each.ready]
            if not free:
                return None
            self._forget(min(free, key=lambda each: (each.slot >= 0, each.used)))
        adapter = self._adapters[wanted.digest] = Adapter(wanted)
        if wanted.digest in self._drop:  # nobody was told yet; workers answer that they have it
            self._drop.remove(wanted.digest)
        self._load.append(wanted)
        return adapter

    def _forget(self, adapter: Adapter) -> None:
        digest = adapter.wanted.digest
        del self._adapters[digest]
        if adapter.slot >= 0:
            self._slots[adapter.slot] = b""
            self._put = [each for each in self._put if each[1] != digest]
        self._drop.append(digest)

    def _in_slot(self, adapter: Adapter) -> bool:
        """Say whether it is in a slot, having put it there if one is free."""
        if adapter.slot >= 0:
            return True
        slot = next((index for index, digest in enumerate(self._slots) if not digest), None)
        if slot is None:
            idle = [
                each
                for each in map(self._adapters.__getitem__, self._slots)
                if not each.holders and not each.pinned
            ]
            if not idle:
                return False
            before = min(idle, key=lambda each: (bool(each.waiting), each.used))
            slot = before.slot
            before.slot = -1
            self._put = [each for each in self._put if each[0] != slot]
        self._slots[slot], adapter.slot = adapter.wanted.digest, slot
        self._put.append((slot, adapter.wanted.digest))
        return True

    def finished(self, request: Any) -> bool:
        """Give back what it held; tell the edge why it failed, where an adapter was to blame."""
        data = request.features.get(NAME)
        request_id = request.request_id
        if data is None:
            return False
        error = self._errors.pop(request_id, "")
        if error:
            request.news[NAME] = error.encode()
        self._waiting.pop(request_id, None)
        adapter = self._adapters.get(_wanted(data).digest)
        if adapter is not None:
            adapter.holders.discard(request_id)
            adapter.waiting.discard(request_id)
        self._wake()
        return False

    def _wake(self) -> None:
        """Ask those again who may start now: no more adapters than there is room for, the earliest
        first.
        """
        idle = sum(not digest for digest in self._slots)
        idle += sum(
            not each.holders and not each.pinned
            for each in self._adapters.values()
            if each.slot >= 0
        )
        room = len(self._adapters) < self._max_held or any(
            each.is_free for each in self._adapters.values()
        )
        chosen: set[bytes] = set()
        for request_id, (digest, _) in list(self._waiting.items()):
            adapter = self._adapters.get(digest)
            if adapter is None and room:
                self._scheduler.wake(request_id)
            elif adapter is not None and adapter.ready:
                if adapter.slot < 0 and digest not in chosen and len(chosen) >= idle:
                    continue
                chosen.add(digest)
                self._scheduler.wake(request_id)

    # --- steps

    def pending(self) -> bool:
        """Say whether workers have something to begin with."""
        return bool(self._load or self._drop)

    def planned(self, plan: StepPlan) -> bytes | None:
        """Say what is to be read and forgotten, what is in slots now, and which rows take which."""
        self._step = plan.step
        if not (plan.new or self._load or self._drop or self._put):
            return None
        rows = []
        for new in plan.new:
            data = new.features.get(NAME)
            if data is not None:
                rows.append((new.row, self._adapters[_wanted(data).digest].slot))
                self._adapted_rows.add(new.row)
            elif new.row in self._adapted_rows:
                rows.append((new.row, -1))
                self._adapted_rows.discard(new.row)
        if not (rows or self._load or self._drop or self._put):
            return None
        news = News(self._load, self._drop, self._put, rows)
        self._load = []
        self._drop = []
        self._put = []
        return _encode(news)

    def result(self, payload: bytes) -> None:
        """Take what a rank says of a load; when all have spoken, let those start who wait, or fail."""
        told = _told(payload)
        adapter = self._adapters.get(told.digest)
        if adapter is None or adapter.ready:
            return
        adapter.told[told.rank] = told
        if len(adapter.told) < self._num_ranks:
            return
        error = next((each.error for each in adapter.told.values() if each.error), "")
        homeless = set.intersection(*(set(each.unplaced) for each in adapter.told.values()))
        if not error and homeless:
            listed = sorted(homeless)
            more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
            error = f"the model has no place for {', '.join(map(repr, listed[:3]))}{more}: it was trained on another model."
        if error:
            self._fail(adapter, error)
        else:
            adapter.ready = True
            adapter.asked = False
        self._wake()

    def _fail(self, adapter: Adapter, error: str) -> None:
        digest = adapter.wanted.digest
        name = adapter.wanted.name
        for request_id in adapter.waiting:
            self._errors[request_id] = f"adapter {name!r:.100}: {error}"
            self._waiting.pop(request_id, None)
            self._scheduler.wake(request_id)
        self._failed[digest] = error
        while len(self._failed) > KEPT_FAILURES:
            del self._failed[next(iter(self._failed))]
        self._forget(adapter)

    # --- calls

    def call(self, verb: str, data: bytes) -> bytes | None:
        """`load` and `unload` an adapter (`Wanted`), `pin` it, `list` all.

        Raises `InvalidRequest` and `QueueFull`.
        """
        if verb == "list":
            return self._list()
        if verb not in ("load", "unload", "pin"):
            return None
        wanted = _wanted(data)
        adapter = self._adapters.get(wanted.digest)
        if verb == "load":
            self._failed.pop(wanted.digest, None)
            if adapter is None:
                adapter = self._begin(wanted)
                if adapter is None:
                    raise QueueFull(
                        f"all {self._max_held} places of --max-cpu-loras are in use; try again "
                        "later."
                    )
                adapter.asked = True
                self._load.remove(wanted)  # workers get the call itself
        elif verb == "pin":
            if adapter is None or not adapter.ready or not self._in_slot(adapter):
                raise InvalidRequest(
                    "lora_name",
                    f"{wanted.name!r:.100} cannot be pinned: it is not loaded, or no slot is free.",
                )
            adapter.pinned = True
        elif adapter is not None:
            adapter.pinned = adapter.asked = False
            if adapter.is_free and adapter.ready:
                self._forget(adapter)
        self._wake()
        return self._list()

    def info(self) -> dict[str, str]:
        """Return the labels of `lora_requests_info`, with vLLM's names: which adapters run, and
        which are waited for.
        """
        waiting = {digest for digest, _ in self._waiting.values()}
        running = sorted(each.wanted.name for each in self._adapters.values() if each.holders)
        return {
            "max_lora": str(len(self._slots)),
            "running_lora_adapters": ",".join(running),
            "waiting_lora_adapters": ",".join(
                sorted(
                    each.wanted.name for digest, each in self._adapters.items() if digest in waiting
                )
            ),
        }

    def _list(self) -> bytes:
        listed = [
            Held(
                name=each.wanted.name,
                digest=each.wanted.digest.hex(),
                state="ready" if each.ready else "loading",
                slot=each.slot,
                pinned=each.pinned,
                running=len(each.holders),
                waiting=sum(digest == each.wanted.digest for digest, _ in self._waiting.values()),
                num_bytes=sum(told.num_bytes for told in each.told.values()),
            )
            for each in self._adapters.values()
        ]
        listed += [
            Held(name="", digest=digest.hex(), state="failed", error=e)
            for digest, e in self._failed.items()
        ]
        return msgspec.json.encode(listed)

    def check(self) -> None:
        """Raise `EngineError` where the books do not agree: for tests."""
        for index, digest in enumerate(self._slots):
            if digest and self._adapters[digest].slot != index:
                raise EngineError(f"slot {index} is not that of its adapter")
        if len(self._adapters) > self._max_held:
            raise EngineError("more adapters are held than may be")
