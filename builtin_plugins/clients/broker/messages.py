"""Messages between an API server and the broker, in addition to those of an engine process."""

from __future__ import annotations

import msgspec

from builtin_plugins.clients.process.messages import (
    Abort,
    Add,
    Answer,
    Outputs,
    Ready,
    Started,
)
from builtin_plugins.executors.api import Connected, Failed
from core.api.serving import EngineStatus
from core.api.telemetry import CallStats, HttpStats, RequestStats, StepStats, TokenStats


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first message to an API server."""

    restarts: int
    """Number of its restarts."""
    descriptors: dict[str, list[int]]
    """Inherited descriptors that all API servers share, by name."""
    options: dict[str, str]
    """Options that only API servers have."""


class FeatureCall(msgspec.Struct, frozen=True, tag=True):
    """Call a feature in every engine."""

    call: int
    name: str
    data: bytes
    only_reads: bool = False
    """Whether it need not wait for an engine that restarts."""


class Status(msgspec.Struct, frozen=True, tag=True):
    """State of the engines and of all API servers together; sent when it changes."""

    status: EngineStatus
    stats: list[StepStats]
    """The last statistics of each engine."""
    open_requests: int
    """Number of open requests of all API servers."""


class Observed(msgspec.Struct, frozen=True, tag=True):
    """Statistics for the metric sinks that all API servers share; one field is set."""

    tokens: TokenStats | None = None
    request: RequestStats | None = None
    http: HttpStats | None = None
    calls: CallStats | None = None


class ReadPage(msgspec.Struct, frozen=True, tag=True):
    """Request for the metrics page; `health` is encoded."""

    call: int
    health: bytes


class Page(msgspec.Struct, frozen=True, tag=True):
    """The metrics page; empty without a sink that has one."""

    call: int
    body: bytes
    content_type: str
    error: str = ""


class Memory(msgspec.Struct, frozen=True, tag=True):
    """Memory and plugin times of the API server, as a page of metrics needs them."""

    report: bytes


class Serving(msgspec.Struct, frozen=True, tag=True):
    """The API server accepts connections; `maintenance` names what answers without one."""

    maintenance: str


class Drained(msgspec.Struct, frozen=True, tag=True):
    """The API server has no open requests and ends."""


class Left(msgspec.Struct, frozen=True, tag=True):
    """The API server ends with this exit status."""

    status: int


ToApiServer = Begin | Ready | Answer | Started | Outputs | Status | Page
FromApiServer = (
    Add
    | Abort
    | FeatureCall
    | Observed
    | ReadPage
    | Memory
    | Serving
    | Drained
    | Left
    | Connected
    | Failed
)
