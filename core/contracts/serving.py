"""HTTP servers and routes, metric sinks, commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import argparse


class RouteGroup(Protocol):
    """A set of HTTP routes. Constructed with (engine, config): an `AsyncLLM` and the configuration."""

    def routes(self) -> Sequence[Any]:
        """Return Starlette or FastAPI routes; paths must not collide with another group's."""


class Server(Protocol):
    """Accepts connections and serves the chosen route groups. Constructed with (engine, config, groups by name).

    Optional: a static method `check(config)` that raises `ConfigError` for settings that cannot work (an address in
    use), called before the model is loaded.
    """

    def run(self) -> int:
        """Serve until told to stop; return the exit status."""


@dataclass(slots=True)
class StepStats:
    """What one engine step did, for metric sinks."""

    step_s: float
    num_running: int
    num_waiting: int
    kv_usage: float
    """Used share of KV blocks, 0 to 1."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    queried_tokens: int = 0
    """Prompt tokens looked up in the prefix cache."""
    preemptions: int = 0
    finished: Mapping[str, int] = field(default_factory=dict)
    """Requests that ended in this step, by finish reason."""


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Times of one finished request, in seconds."""

    finish_reason: str
    prompt_tokens: int
    generated_tokens: int
    e2e_s: float
    ttft_s: float | None
    """Time to first token; None when there was none."""
    queue_s: float | None = None


class MetricSink(Protocol):
    """Takes measurements. Constructed with (config). One that keeps raising is quarantined, not fatal."""

    def step(self, stats: StepStats) -> None:
        """Take the numbers of one engine step."""

    def request(self, stats: RequestStats) -> None:
        """Take the numbers of one finished request."""


class Command(Protocol):
    """A subcommand of `engine`. Constructed without arguments.

    Optional: `examines_plugins = True` for one without engine options that runs when plugins are broken, too.
    """

    help: str
    takes_engine_options: bool
    """True: the engine's and plugins' options are added to its parser and a config is built."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments."""

    def run(self, context: Any) -> int:
        """Run and return the exit status; `context` is `core.cli.CommandContext`."""


OpImplementation = Callable[..., Any]
"""Target of an `op_impls` entry: a function with the signature of its op in `core.ops.reference`."""
