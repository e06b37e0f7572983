"""Exact replay of a journal.

The scheduler is a pure function of its calls, so the same calls must return the same
plans. The report names the first difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from core.contracts.scheduling import SchedulingPolicy
from core.errors import EngineError
from core.kv import KVManager
from core.option_files import read_option_bytes
from core.scheduler.scheduler import Scheduler
from core.step import EngineRequest, StepPlan, StepResult
from core.testing.journal import LENGTH_BYTES, RECORDED, VERSION, Frame, Header, header_of

MAX_BYTES: Final = 1 << 30
"""Size limit of a journal."""
MAX_SIZE: Final = 1 << 24
"""Limit of each size in a header: blocks, rows, tokens of a block or a request."""
MAX_DEPTH: Final = 64
"""Limit of steps in flight."""
MAX_IDLE_CALLS: Final = 1 << 20
"""Limit of calls of `schedule` in a row that return no plan."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The outcome of a replay."""

    num_events: int
    """Number of events applied."""
    num_plans: int
    """Number of plans compared and equal."""
    difference: str | None = None
    """First plan that differs, recorded and replayed; None if all are
    identical.
    """
    note: str | None = None
    """Remark on the file, such as an incomplete last frame."""

    @property
    def identical(self) -> bool:
        """Whether every recorded plan was replayed identically."""
        return self.difference is None


def replay(
    path: str, *, policy: SchedulingPolicy | None = None, extensions: Sequence[Any] = ()
) -> ReplayReport:
    """Run a journal through a new scheduler and compare every plan.

    `policy` and `extensions` must be of the recorded kinds: a journal never causes code
    to be imported. Raises `EngineError` if they are not, or if the file is not a
    journal or says what no scheduler has recorded.
    """
    frames, truncated = _read_frames(read_option_bytes("journal", path, MAX_BYTES))
    if not frames:
        raise EngineError(f"{path} is no journal: it has no complete header.")
    try:
        header = msgspec.msgpack.decode(frames[0], type=Header)
        events = [msgspec.msgpack.decode(data, type=Frame) for data in frames[1:]]
        if unknown := {event.kind for event in events} - {"plan", *RECORDED.values()}:
            raise EngineError(f"it has an event {min(unknown)!r:.100}.")
        _check_sizes(header)
        scheduler = Scheduler(
            header.limits,
            KVManager(
                header.layout, prefix_caching=header.prefix_caching, identity=header.identity
            ),
            policy=policy,
            extensions=extensions,
            depth=header.depth,
        )
    except Exception as error:
        raise EngineError(f"{path} is no journal of version {VERSION}: {error}") from error
    if header != header_of(scheduler):
        raise EngineError(
            f"{path} was recorded by version {header.version} with policy {header.policy!r} and "
            f"extensions {header.extensions}; give replay the same ones."
        )
    note = None
    if truncated:
        note = "the last frame is incomplete: the recording process ended while it wrote."
    num_plans = 0
    num_events = 0
    try:
        for event, difference in _run(scheduler, events):
            num_events += 1
            if difference is not None:
                return ReplayReport(num_events, num_plans, difference, note)
            num_plans += event.kind == "plan"
    except Exception as error:
        raise EngineError(
            f"{path}: event {num_events + 1} cannot be replayed: {type(error).__name__}: {error}"
        ) from error
    return ReplayReport(num_events, num_plans, None, note)


def _check_sizes(header: Header) -> None:
    """Raise `EngineError` for sizes that a scheduler would reserve memory for."""
    layout = header.layout
    sizes = [pool.num_blocks for pool in layout.pools]
    sizes += [layout.hash_block_size, *(group.block_size for group in layout.groups)]
    limits = header.limits
    sizes += [limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len]
    is_empty = not layout.groups  # a model without a cache
    if is_empty != (not layout.pools) or min(sizes) < 1 or max(sizes) > MAX_SIZE:
        raise EngineError(f"it has sizes beyond 1 to {MAX_SIZE}.")
    if any(not 0 <= group.pool < len(layout.pools) for group in layout.groups):
        raise EngineError("it has a group without a pool.")
    if not 1 <= header.depth <= MAX_DEPTH:
        raise EngineError(f"it has {header.depth} steps in flight.")


def _run(scheduler: Scheduler, events: Sequence[Frame]) -> Iterator[tuple[Frame, str | None]]:
    """Apply events one by one; yield each with its difference, if any."""
    for event in events:
        plan = None
        if event.num_schedules - scheduler.num_schedules > MAX_IDLE_CALLS:
            raise EngineError(f"more than {MAX_IDLE_CALLS} calls without a plan.")
        while scheduler.num_schedules < event.num_schedules:
            if plan is not None:
                yield event, _unexpected(scheduler, plan)
            plan = scheduler.schedule()
        if event.kind == "plan":
            recorded = msgspec.msgpack.decode(event.data, type=StepPlan)
            if plan != recorded:
                yield (
                    event,
                    f"schedule call {event.num_schedules}: recorded {recorded}, replayed {plan}",
                )
        elif plan is not None:
            yield event, _unexpected(scheduler, plan)
        else:
            _apply(scheduler, event)
        yield event, None


def _unexpected(scheduler: Scheduler, plan: StepPlan) -> str:
    return f"schedule call {scheduler.num_schedules}: recorded no plan, replayed {plan}"


def _apply(scheduler: Scheduler, event: Frame) -> None:
    """Make the call of one event."""
    decode = msgspec.msgpack.decode
    if event.kind == "add":
        scheduler.add(decode(event.data, type=EngineRequest))
    elif event.kind == "result":
        scheduler.update(decode(event.data, type=StepResult))
    elif event.kind == "fail":
        scheduler.fail_in_flight(decode(event.data, type=str))
    elif event.kind == "reset":
        scheduler.reset_prefix_cache()
    elif event.kind == "recompute":
        scheduler.recompute(*decode(event.data, type=tuple[str, int]))
    elif event.kind == "message":
        scheduler.receive_message(*decode(event.data, type=tuple[str, bytes]))
    else:  # abort, wake, loaded or release
        getattr(scheduler, event.kind)(decode(event.data, type=str))


def _read_frames(data: bytes) -> tuple[list[bytes], bool]:
    """Return the complete frames, and whether an incomplete one follows."""
    frames = []
    offset = 0
    while offset + LENGTH_BYTES <= len(data):
        start = offset + LENGTH_BYTES
        end = start + int.from_bytes(data[offset:start], "little")
        if not start < end <= len(data):
            break
        frames.append(data[start:end])
        offset = end
    return frames, offset < len(data)
