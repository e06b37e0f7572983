"""The command and its subcommands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from builtin_plugins.commands.bench.latency import Latency
from builtin_plugins.commands.bench.serve import ServeLoad
from builtin_plugins.commands.bench.sla import Sweep
from builtin_plugins.commands.bench.startup import Startup
from builtin_plugins.commands.bench.step import Step
from builtin_plugins.commands.bench.throughput import Throughput
from core.api import ConfigError

if TYPE_CHECKING:
    import argparse

    from core.api import Command


class Bench:
    """What is measured is chosen by the subcommand."""

    help = "Measure throughput, latency, serving, start-up or the engine's own step; sweep over settings."
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

    def run(self, context: Any) -> int:
        """Refuse: without a subcommand there is nothing to measure."""
        raise ConfigError(f"engine bench needs a subcommand: {', '.join(self.subcommands)}.")
