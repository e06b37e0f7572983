"""HTTP servers and routes, metric sinks, commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import argparse


class RouteGroup(Protocol):
    """A set of HTTP routes. Constructed with (engine, config): an `AsyncLLM` and the configuration.

    Optional: `public_paths`, those of its paths that need no API key and are served in every state
    of the server; `quiet_paths`, those that machines ask every few seconds, which get no line in
    the access log when answered well; `bodies()`, which returns JSON schemas of request bodies by
    path, for `/openapi.json`, and `queries`, those of query parameters by route ("GET /path") and
    name; `around(app)`, which returns an ASGI application that stands around the server's own and
    sees what that refuses, too; `switch`, on the class: the name of the option without which it has
    no routes; and `refusal(status, error)`, which returns the body of an error in a form of its
    own, where the server's, which is OpenAI's, is not its clients': `error` is OpenAI's error
    object. A stream then ends with it as an event named `error`. A request's `scope["state"]`
    tells, where the server keeps them: `server`, a `ServerActivity`, and `template`, the template
    of its path.
    """

    def routes(self) -> Sequence[Any]:
        """Return Starlette or FastAPI routes; paths must not collide with another group's."""


@dataclass(slots=True)
class ServerActivity:
    """What a server does at the moment."""

    draining: bool = False
    """It ends when the open requests have ended, and takes no others."""
    open_requests: int = 0
    """Requests under way, those to public paths left out."""


class Server(Protocol):
    """Accepts connections and serves the chosen route groups. Constructed with (engine, config,
    groups by name).

    Optional: a static method `check(config)` that raises `ConfigError` for settings that cannot
    work (an address in use), called before the model is loaded; and an attribute `parent`, set
    before `run` where a `Parent` watches the process: the server keeps there what its next life
    listens on, and says when it serves.
    """

    def run(self) -> int:
        """Serve until told to stop; return the exit status."""


@dataclass(slots=True)
class StepStats:
    """What one engine step did, for metric sinks."""

    step_s: float
    """0 where no step was taken: the numbers say what an abort has left."""
    num_running: int
    num_waiting: int
    kv_usage: float
    """Used share of KV blocks, 0 to 1."""
    computed_tokens: int = 0
    """Positions computed, of prompts and outputs alike; those of a preempted request count each
    time.
    """
    cached_tokens: int = 0
    """Of the tokens looked up, those found."""
    queried_tokens: int = 0
    """Tokens looked up in the prefix cache."""
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class TokenStats:
    """What one delivery of tokens brought to the requests that were open; an engine step brings at
    most one.
    """

    generated_tokens: int
    prompt_tokens: int = 0
    """Tokens of the prompts that were complete with it: whose first token it brought."""
    cached_tokens: int = 0
    """Those of them that came from the prefix cache."""
    first_token_s: Sequence[float] = ()
    """Seconds from arrival, of each request whose first token it brought."""
    inter_token_s: Sequence[float] = ()
    """Seconds since the last token, of each sequence that had one before."""


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One request that has ended: sizes, and times in seconds from its arrival."""

    finish_reason: str
    """"stop", "length", "abort" or "error"."""
    prompt_tokens: int
    generated_tokens: int
    """Over all its sequences."""
    e2e_s: float
    """Until the last token, or until the request was given up."""
    ttft_s: float | None = None
    """Until the first token; None when there was none."""
    queue_s: float | None = None
    """Until a step first computed it; None when none did."""
    longest_output: int = 0
    """Tokens of its longest sequence."""
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    n: int = 1
    """Sequences asked for."""
    max_tokens: int | None = None
    """Most tokens asked for."""
    request_id: str = ""
    shown: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its outputs that features have filled."""

    @property
    def counts(self) -> Mapping[str, float]:
        """What features counted of it, by name."""
        return self.shown.get("counts") or {}

    @property
    def prefill_s(self) -> float | None:
        """From the first step to the first token."""
        return None if self.ttft_s is None or self.queue_s is None else self.ttft_s - self.queue_s

    @property
    def decode_s(self) -> float | None:
        """From the first token to the last."""
        return None if self.ttft_s is None else self.e2e_s - self.ttft_s

    @property
    def inference_s(self) -> float | None:
        """From the first step to the last token."""
        return None if self.queue_s is None else self.e2e_s - self.queue_s


@dataclass(frozen=True, slots=True)
class HttpStats:
    """One HTTP request that has been answered."""

    path: str
    """Template of the route, such as `/v1/models/{model:path}`; empty where none matched."""
    method: str
    status: int
    duration_s: float
    """Until the last byte of the answer was handed to the connection."""
    request_id: str = ""
    """The `X-Request-Id` that it came with."""
    error: str = ""
    """What was said to a client that was refused; may repeat what it wrote."""


@dataclass(frozen=True, slots=True)
class CallStats:
    """Calls of tools that an answer brought."""

    known: int = 0
    unknown: int = 0
    """Of tools that the request does not have; they are passed on as called."""


class MetricSink(Protocol):
    """Takes measurements. Constructed with (config). One that keeps raising is quarantined, not
    fatal.

    `step` comes from the thread that hears the engine, everything else from the event loop's.
    Optional methods: `tokens(TokenStats)`, `http(HttpStats)`, `calls(CallStats)`; `ready(config)`,
    once, with every automatic value decided; and `expose(health)`, from any thread, which returns
    (body, content type) for `/metrics`; `health` is what the engine says of itself. Several sinks
    that expose Prometheus' text share the page; no two may have a metric of one name.
    """

    def step(self, stats: StepStats) -> None:
        """Take the numbers of one engine step."""

    def request(self, stats: RequestStats) -> None:
        """Take the numbers of one request that has ended."""


class Command(Protocol):
    """A subcommand of `engine`. Constructed without arguments.

    Optional: `examines_plugins = True` for one without engine options that runs when plugins are
    broken, too.
    """

    help: str
    takes_engine_options: bool
    """True: the engine's and plugins' options are added to its parser and a config is built."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments."""

    def run(self, context: Any) -> int:
        """Run and return the exit status; `context` is `core.cli.CommandContext`."""
