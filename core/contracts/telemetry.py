"""Telemetry: step and request statistics, metric sinks, and what features
report by themselves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from core.contracts.registry import Registry

# --- statistics that the engine records -------------------------------------


@dataclass(slots=True)
class StepStats:
    """One engine step."""

    step_s: float
    """Duration in seconds; 0 when no step ran and the numbers describe the
    state after an abort.
    """
    num_running: int
    num_waiting: int
    kv_usage: float
    """Share of KV blocks in use, 0 to 1."""
    computed_tokens: int = 0
    """Positions computed, of prompts and outputs; recomputed ones count
    again.
    """
    cached_tokens: int = 0
    """Prefix cache hits, in tokens."""
    queried_tokens: int = 0
    """Prefix cache queries, in tokens."""
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class TokenStats:
    """The tokens of one delivery to open requests; an engine step has one
    delivery or none.
    """

    generated_tokens: int
    prompt_tokens: int = 0
    """Prompt tokens of the requests that received their first token."""
    cached_tokens: int = 0
    """Those prompt tokens that came from the prefix cache."""
    first_token_s: Sequence[float] = ()
    """Seconds from arrival to first token, for each first token delivered."""
    inter_token_s: Sequence[float] = ()
    """Seconds since the previous token, for each sequence that had one."""


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One finished request: sizes, and times in seconds from its arrival."""

    finish_reason: str
    """"stop", "length", "abort" or "error"."""
    prompt_tokens: int
    generated_tokens: int
    """Sum over all its sequences."""
    e2e_s: float
    """Time to the last token, or to the abort."""
    ttft_s: float | None = None
    """Time to first token; None without a token."""
    queue_s: float | None = None
    """Time until a step first computed it; None if no step did."""
    longest_output: int = 0
    """Tokens of its longest sequence."""
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    n: int = 1
    """Number of sequences requested."""
    max_tokens: int | None = None
    """Requested bound of generated tokens."""
    request_id: str = ""
    extra_fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its outputs that features filled."""

    @property
    def counts(self) -> Mapping[str, float]:
        """Counters of features for this request, by name."""
        return self.extra_fields.get("counts") or {}

    @property
    def prefill_s(self) -> float | None:
        """Time from the first step to the first token."""
        if self.ttft_s is None or self.queue_s is None:
            return None
        return self.ttft_s - self.queue_s

    @property
    def decode_s(self) -> float | None:
        """Time from the first token to the last."""
        return None if self.ttft_s is None else self.e2e_s - self.ttft_s

    @property
    def inference_s(self) -> float | None:
        """Time from the first step to the last token."""
        return None if self.queue_s is None else self.e2e_s - self.queue_s


@dataclass(frozen=True, slots=True)
class HttpStats:
    """One answered HTTP request."""

    path: str
    """Path template of the route, such as `/v1/models/{model:path}`; empty
    without a match.
    """
    method: str
    status: int
    duration_s: float
    """Time until the last byte of the answer was passed to the connection."""
    request_id: str = ""
    """The client's `X-Request-Id`."""
    error: str = ""
    """Error message of a rejected request; may repeat the client's input."""


@dataclass(frozen=True, slots=True)
class CallStats:
    """Tool calls in one answer."""

    known: int = 0
    unknown: int = 0
    """Calls of tools that the request does not offer; they are passed on
    unchanged.
    """


class MetricSink(Protocol):
    """Receives statistics. Constructed with (config). A sink that keeps
    raising is quarantined.

    `step` runs in the thread that listens to the engine, all other methods in the event
    loop's. Optional methods: `tokens(TokenStats)`, `http(HttpStats)`,
    `calls(CallStats)`; `ready(config)`, once, with every automatic value resolved; and
    `expose(health)`, from any thread, which returns (body, content type) for
    `/metrics`, where `health` is `ServedEngine.health()`. Several sinks that expose
    Prometheus text share the page; metric names must be unique over all of them.
    """

    def step(self, stats: StepStats) -> None:
        """Record one engine step."""

    def request(self, stats: RequestStats) -> None:
        """Record one finished request."""


class MetricRecorder(Protocol):
    """The metric sinks of an engine, as servers and routes see them."""

    entries: Sequence[Any]
    """The sinks with their fault counts (`sink`, `name`, `owner`,
    `quarantined`).
    """

    def record(self, stats: StepStats | TokenStats | RequestStats | HttpStats | CallStats) -> None:
        """Pass statistics to every healthy sink that has a method
        for them.
        """


# --- what features report when scraped --------------------------------------


class Histogram:
    """A histogram with fixed buckets.

    Written by one thread; any thread may read it.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(
        self, bounds: Sequence[float], counts: Sequence[int] = (), sum: float = 0.0
    ) -> None:
        self.bounds: Final = tuple(bounds)
        """Upper bounds of the buckets, ascending and inclusive."""
        self.counts: Final = list(counts) or [0] * (len(bounds) + 1)
        """Number of values per bucket; the last entry counts values above all
        bounds.
        """
        self.sum = sum

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


InfoProvider = Callable[[], Mapping[str, str]]
"""Returns the labels of a metric that is always 1. Must be quick.

Called between two steps in the process of the feature's scheduler half.
"""


GaugeProvider = Callable[[], Mapping[str, float]]
"""Returns numbers by metric name, called like an `InfoProvider`.

A name that ends with `_total` is a counter. `with_label` adds a label to a name.
"""


HistogramProvider = Callable[[], Mapping[str, Histogram]]
"""Returns histograms by metric name, called like an `InfoProvider`."""


def with_label(name: str, label: str, value: str) -> str:
    """Return a metric name with one label.

    Its values must be a small fixed set.
    """
    return f"{name}{{{label}={value}}}"


def split_labels(labelled_name: str) -> tuple[str, dict[str, str]]:
    """Return the metric name and the labels of a name made by
    `with_label`.
    """
    name, _, label = labelled_name.partition("{")
    if not label:
        return name, {}
    key, _, value = label.removesuffix("}").partition("=")
    return name, {key: value}


def info_providers(registry: Registry) -> dict[str, InfoProvider]:
    """Return this process's info providers by metric name; features add their
    own.
    """
    made: dict[str, InfoProvider] = registry.shared("infos", dict)
    return made


def gauge_providers(registry: Registry) -> dict[str, GaugeProvider]:
    """Return this process's gauge and counter providers by feature; features
    add their own.
    """
    made: dict[str, GaugeProvider] = registry.shared("numbers", dict)
    return made


def histogram_providers(registry: Registry) -> dict[str, HistogramProvider]:
    """Return this process's histogram providers by feature; features add
    their own.
    """
    made: dict[str, HistogramProvider] = registry.shared("spreads", dict)
    return made


def plugin_faults(registry: Registry) -> Mapping[str, tuple[int, str]]:
    """Return the number of exceptions and the last message of each plugin
    that has raised.

    Exceptions that a contract allows are not counted.
    """
    found: Mapping[str, tuple[int, str]] = registry.shared("faults", dict)
    return dict(found)


class CallTotals(Protocol):
    """The call timer of a process (`core.plugin.call_timer.CallTimer`)."""

    def totals(self) -> Mapping[str, float]:
        """Return the measured seconds of each plugin."""


def plugin_seconds(registry: Registry) -> Mapping[str, float]:
    """Return the seconds that calls into each plugin have taken in this
    process.
    """
    timer: CallTotals = registry.shared("call_timer", _no_timer)
    return timer.totals()


def _no_timer() -> CallTotals:
    raise LookupError("this registry times no calls")


# --- memory of this process -------------------------------------------------

ByteCount = Callable[[], int]
"""Returns a number of bytes. Called from any thread; must not block."""


@dataclass(slots=True)
class MemoryOwners:
    """The owners of growing memory in one process, by name."""

    owners: dict[str, tuple[ByteCount, ByteCount]] = field(default_factory=dict)

    def add(self, owner: str, num_bytes: ByteCount, limit: ByteCount) -> None:
        """Add an owner with its current size and its limit; replaces one of
        the same name.

        Names are a fixed set in snake case (`grammar_cache`): they are label values of
        a metric.
        """
        self.owners[owner] = num_bytes, limit

    def usage(self) -> dict[str, tuple[int, int]]:
        """Return the current bytes and the limit of each owner."""
        owners = list(self.owners.items())
        return {owner: (num_bytes(), limit()) for owner, (num_bytes, limit) in owners}


def memory_owners(registry: Registry) -> MemoryOwners:
    """Return the memory owners of this process."""
    made: MemoryOwners = registry.shared("memory", MemoryOwners)
    return made
