"""`engine bench` and its subcommands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from builtin_plugins.commands.bench.latency import Latency
from builtin_plugins.commands.bench.serve import ServeLoad
from builtin_plugins.commands.bench.sla import Sweep
from builtin_plugins.commands.bench.startup import Startup
from builtin_plugins.commands.bench.step import Step
from builtin_plugins.commands.bench.throughput import Throughput
from core.api import ConfigError

if TYPE_CHECKING:
    import argparse

    from core.api import Command, CommandContext


class Bench:
    """Dispatches to a benchmark."""

    help = "Benchmark throughput, latency, serving, startup or engine steps; sweep over settings."
    takes_engine_options = False
    subcommands: ClassVar[Mapping[str, type[Command]]] = {
        "throughput": Throughput,
        "latency": Latency,
        "serve": ServeLoad,
        "startup": Startup,
        "step": Step,
        "sweep": Sweep,
    }

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing: all arguments belong to the subcommands."""

    def run(self, context: CommandContext) -> int:
        """Reject a call without a subcommand."""
        raise ConfigError(f"engine bench needs a subcommand: {', '.join(self.subcommands)}.")
