"""The benchmarks for Python scripts: `add_cli_args` and `main`, as in vLLM's modules."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, Final

from builtin_plugins.commands.bench.latency import Latency
from builtin_plugins.commands.bench.serve import ServeLoad
from builtin_plugins.commands.bench.throughput import Throughput
from core import LLM, AsyncLLM, EngineArgs


class EngineBenchmark:
    """A benchmark that starts an engine."""

    def __init__(self, command: Latency | Throughput) -> None:
        self._command = command

    def add_cli_args(self, parser: argparse.ArgumentParser) -> None:
        """Add the engine's flags and the benchmark's."""
        EngineArgs.add_cli_args(parser)
        self._command.add_own_flags(parser)

    def main(self, args: argparse.Namespace) -> dict[str, Any]:
        """Measure, report, and return the result. Raises `ConfigError` for invalid settings."""
        return self._command.measure(args, lambda: _start(args))


class ServerBenchmark:
    """The benchmark of a running server."""

    def __init__(self, command: ServeLoad) -> None:
        self._command = command

    def add_cli_args(self, parser: argparse.ArgumentParser) -> None:
        """Add the benchmark's flags."""
        self._command.add_arguments(parser)

    def main(self, args: argparse.Namespace) -> dict[str, Any]:
        """Measure, report, and return the result. Raises `ConfigError` for invalid settings."""
        return self._command.measure(args)


bench_latency: Final = EngineBenchmark(Latency())
bench_throughput: Final = EngineBenchmark(Throughput())
bench_serve: Final = ServerBenchmark(ServeLoad())


def _start(args: argparse.Namespace) -> Any:
    """Return `LLM`, or an `AsyncEngine` if the flags request it."""
    settings = dataclasses.asdict(EngineArgs.from_cli_args(args))  # type: ignore[call-overload]
    if not getattr(args, "async_engine", False):
        return LLM(**settings)
    # lazy: few scripts need it
    from builtin_plugins.commands.bench.async_engine import AsyncEngine

    return AsyncEngine(AsyncLLM(**settings))
