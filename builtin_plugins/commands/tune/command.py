"""The command `engine tune MODEL`: measures this machine and writes a configuration file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.config.command import HIDDEN, effective_values, toml_value
from builtin_plugins.commands.plan.report import rates_text
from builtin_plugins.commands.sizes import show_bytes
from builtin_plugins.commands.tune.choice import Candidate, candidates, choose
from builtin_plugins.commands.tune.measure import (
    cpu_library,
    fastest,
    measure,
    operations_per_s,
    thread_counts,
)
from builtin_plugins.platforms.api import usable_cores
from core.api import ConfigError
from core.api.config import create_option_file

if TYPE_CHECKING:
    import argparse

    from core_kernels.speed import Speed

    from core.api import CommandContext

OUTPUT: Final = "engine.toml"
TOKENS_PER_S: Final = 10.0
"""Output tokens per second of one request: faster than people read."""
STARTUP: Final = frozenset({"config", "log_level", "log_format"})
"""Settings of this command itself, which are not written."""


class Tune:
    """Writes weights' bits, context and threads for a model on this machine."""

    help = (
        "Measure this machine's memory bandwidth and products, choose weights, context and threads "
        "for a model, and write them with all other flags into a configuration file."
    )
    takes_engine_options = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the model, the speed and the file."""
        parser.add_argument("model", nargs="?", help="local folder or hub id, as for serve")
        parser.add_argument(
            "--tokens-per-second",
            type=float,
            default=TOKENS_PER_S,
            metavar="N",
            help="choose the first of stored, int8 and int4 weights that reach this for one "
            f"request (default: {TOKENS_PER_S:g}); if none does, the fastest",
        )
        parser.add_argument(
            "-o", "--output", default=OUTPUT, metavar="FILE", help=f"default: {OUTPUT}"
        )
        parser.add_argument("--force", action="store_true", help="replace an existing file")

    def run(self, context: CommandContext) -> int:
        """Print measurements and choice, write the file; return 1 if the model does not fit."""
        path = Path(context.args.output).expanduser()
        _check_output(path, force=context.args.force)
        library = cpu_library(context.config)
        found = list(candidates(context.config, context.registry))
        counts = [context.config.device.num_threads or 0]
        if not counts[0]:
            counts = thread_counts(usable_cores())
        kinds = found[0].kinds
        if not kinds:
            raise ConfigError(
                f"MODEL: got {context.config.model.model}, which multiplies by no weights; "
                "expected a model with layers. Name another one."
            )
        main = max(kinds, key=lambda kind: kinds[kind])
        by_threads = {count: measure(library, count, [main])[main] for count in counts}
        threads = fastest(by_threads)
        others = sorted({kind for each in found for kind in each.kinds} - {main})
        speeds = {main: by_threads[threads], **measure(library, threads, others)}
        isa = library.core_kernels_isa().decode()
        chosen = choose(found, speeds, context.args.tokens_per_second)
        for line in _report(by_threads, threads, isa, speeds, found):
            print(line)
        if chosen is None or chosen.plan is None:
            print("choice    none fits; `engine plan` with the same arguments says what helps")
            return 1
        rates = rates_text(chosen.rates(speeds))
        print(f"choice    weights {chosen.name}, {_threads(threads)}: {rates}")
        print(f"context   {chosen.plan.context_length:,} tokens{_cut(chosen)}")
        settings = {
            "quantization": chosen.quantization,
            "max_model_len": chosen.plan.context_length,
            "num_threads": threads,
        }
        lines = _file_lines(context, settings, f"{isa}: {rates}")
        with create_option_file("--output", path) as file:
            file.write("\n".join([*lines, ""]).encode())
        print(f"written   {path}; start with: engine serve --config {path}")
        return 0


def _check_output(path: Path, *, force: bool) -> None:
    if path.suffix != ".toml":
        raise ConfigError(f"--output: got {path}; expected a name that ends in .toml. Rename it.")
    if path.exists() and not force:
        raise ConfigError(
            f"--output: got {path}, which exists; expected a new file. Name another one, or add "
            "--force."
        )


def _report(
    by_threads: Mapping[int, Speed],
    threads: int,
    isa: str,
    speeds: Mapping[str, Speed],
    found: list[Candidate],
) -> Iterator[str]:
    """Yield the measurements, and what each way to store the weights makes of them."""
    label = "measured"
    for count, speed in by_threads.items():
        yield f"{label:<10}{_threads(count)}, {_speed(speed)} ({isa})"
        label = ""
    for kind, speed in speeds.items():
        if kind != by_threads[threads].kind:
            yield f"{'':<10}{_threads(threads)}, {_speed(speed)}"
    label = "weights"
    for each in found:
        text = each.problem
        if each.plan is not None and not text:
            size = show_bytes(sum(each.plan.weight_bytes))
            text = f"{size}, {rates_text(each.rates(speeds))}"
        yield f"{label:<10}{each.name}: {text}"
        label = ""


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _speed(speed: Speed) -> str:
    read = speed.decode_bytes / 1e9
    return f"{speed.kind}: reads {read:.1f} GB/s, {operations_per_s(speed) / 1e9:,.0f} Gop/s"


def _cut(chosen: Candidate) -> str:
    if chosen.plan is None or chosen.plan.context_length == chosen.plan.source.max_model_len:
        return ""
    return f" of the model's {chosen.plan.source.max_model_len:,}"


def _file_lines(context: CommandContext, chosen: Mapping[str, Any], estimate: str) -> Iterator[str]:
    """Yield the lines of the configuration: all that was set, and what was chosen."""
    yield f"# Written by `engine tune`. {estimate}."
    values: dict[str, Any] = {"model": context.config.model.model}
    for found, value in effective_values(context):
        if value == HIDDEN:
            yield f"# {found.name} is not written"
        elif found.name in context.provenance.origins and found.name not in STARTUP:
            values[found.name] = value
    for name, value in {**values, **chosen}.items():
        if value is not None:
            yield f"{name} = {toml_value(value)}"
