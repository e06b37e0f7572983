"""The file format of a journal: every call of a scheduler and every plan it returned.

The file is a sequence of length-prefixed msgpack frames, a `Header` first. The option
`--journal` writes it; `core.testing.replay` reads it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from core.model_spec.kv import KVLayout
from core.scheduler.limits import SchedulerLimits

VERSION: Final = 4
LENGTH_BYTES: Final = 4
"""Bytes of the little-endian length before each frame."""
EXTENSION: Final = "journal"
"""Name of the scheduler extension that records; the header does not list it."""
RECORDED: Final = {
    "add": "add",
    "abort": "abort",
    "wake": "wake",
    "loaded": "loaded",
    "release": "release",
    "recompute": "recompute",
    "receive_message": "message",
    "reset_prefix_cache": "reset",
    "update": "result",
    "fail_in_flight": "fail",
}
"""Kind of the frame of each scheduler method, besides "plan" of `schedule`."""


class Header(msgspec.Struct, frozen=True):
    """The construction parameters of the recorded scheduler."""

    version: int
    """Version of the format."""
    limits: SchedulerLimits
    """Bounds of a step and of a request."""
    layout: KVLayout
    """Division of the KV memory."""
    prefix_caching: bool
    """Whether cached blocks are found by later requests."""
    identity: str
    """Hash of what cached blocks depend on."""
    depth: int
    """Steps in flight."""
    policy: str
    """Class name of the scheduling policy."""
    extensions: list[str]
    """Names of the other scheduler extensions, in load order."""


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """One event, after the `num_schedules`-th call of `schedule`.

    Its data is the argument of the call, or a pair of arguments.
    """

    kind: str
    """A value of `RECORDED`, or "plan"."""
    clock_s: float
    """Time of a monotonic clock, in seconds."""
    num_schedules: int
    """Calls of `schedule` before the event."""
    data: msgspec.Raw
    """The encoded argument."""


def header_of(scheduler: Any) -> Header:
    """Return the journal header of a scheduler."""
    kv = scheduler.kv
    # `type(policy)` would return the class of its timing proxy.
    policy = scheduler.policy.__class__.__qualname__
    return Header(
        version=VERSION,
        limits=scheduler.limits,
        layout=kv.layout,
        prefix_caching=kv.prefix_caching,
        identity=kv.identity,
        depth=scheduler.depth,
        policy=policy,
        extensions=[name for name in scheduler.extension_names if name != EXTENSION],
    )
