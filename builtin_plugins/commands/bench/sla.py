"""`engine bench sweep serve_sla`: the largest load that meets a service-level agreement."""

from __future__ import annotations

import json
import operator
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from builtin_plugins.commands.bench.report import check_counts
from builtin_plugins.commands.bench.sweep import (
    SweepServe,
    dry_run_line,
    folder_of,
    grid_of,
    measure,
    rows_of,
    served,
    write,
)
from builtin_plugins.commands.bench.sweep_grid import Point, read_settings
from builtin_plugins.commands.bench.sweep_plots import SweepPareto, SweepPlot
from core.api import ConfigError

if TYPE_CHECKING:
    import argparse

    from core.api import Command, CommandContext

VARIABLES: Final = ("request_rate", "max_concurrency")
COMPARED: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_BOUND: Final = re.compile(r"(<=|>=|<|>)\s*([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Sla:
    """An SLA: bounds of metrics that must all hold."""

    bounds: Mapping[str, str]
    """Bound by metric, such as `<=500`."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an invalid bound."""
        for name, bound in self.bounds.items():
            if name != "_name" and not _BOUND.fullmatch(str(bound)):
                raise ConfigError(
                    f'--sla-params: {name} has {bound!r}; give a comparison, such as "<=500".'
                )

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {bound}" for name, bound in self.bounds.items() if name != "_name"
        )

    def holds(self, figures: Mapping[str, float]) -> bool:
        """Return whether the metrics meet it. Raises `ConfigError` for an unmeasured one."""
        for name, bound in self.bounds.items():
            if name == "_name":
                continue
            if name not in figures:
                known = ", ".join(sorted(figures))
                raise ConfigError(
                    f"--sla-params: the benchmark has no metric {name!r}; it has {known}."
                )
            for compared, limit in _BOUND.findall(str(bound)):
                if not COMPARED[compared](figures[name], float(limit)):
                    return False
        return True


class SweepServeSla(SweepServe):
    """Searches the largest load per combination and SLA; reuses existing runs."""

    help = "Find the largest load that meets bounds on latency or throughput."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the SLA and the variable load."""
        super().add_arguments(parser)
        add = parser.add_argument
        add(
            "--sla-params",
            required=True,
            metavar="FILE",
            help='JSON: bounds of metrics, or a list of them: [{"p99_ttft_ms": "<=500"}]',
        )
        add(
            "--sla-variable",
            choices=VARIABLES,
            default=VARIABLES[0],
            help="searched variable (default: request_rate)",
        )
        add(
            "--sla-max",
            type=int,
            default=1024,
            metavar="N",
            help="largest value to try (default: 1024)",
        )

    def run(self, context: CommandContext) -> int:
        """Search for each combination and SLA, then write and print all results."""
        args = context.args
        check_counts(args, num_runs=1, sla_max=1)
        grid = grid_of(args)
        folder = folder_of(args)
        slas = [Sla(each) for each in read_settings("--sla-params", args.sla_params)]
        if any(args.sla_variable in point.bench for _, each in grid for point in each):
            raise ConfigError(
                f"--bench-params: {args.sla_variable} is the searched variable. Omit it."
            )
        if args.dry_run:
            for _, each in grid:
                for point in each:
                    print(f"up to {args.sla_max}: {dry_run_line(args, _at(args, point, 1))}")
            return 0
        folder.mkdir(parents=True, exist_ok=True)
        tried: dict[str, Point] = {}
        for settings, each in grid:
            with served(args, settings) as url:
                for point in each:
                    for sla in slas:
                        self._search(args, folder, point, sla, url, tried)
        write(folder, [row for point in tried.values() for row in rows_of(args, folder, point)])
        return 0

    def _search(
        self,
        args: argparse.Namespace,
        folder: Path,
        point: Point,
        sla: Sla,
        url: str,
        tried: dict[str, Point],
    ) -> None:
        def holds(value: int) -> bool:
            at = _at(args, point, value)
            tried[at.folder] = at
            measure(args, folder, at, url)
            rows = list(rows_of(args, folder, at))
            numbers = [name for name, found in rows[0].items() if isinstance(found, (int, float))]
            met = sla.holds({name: statistics.fmean(row[name] for row in rows) for name in numbers})
            print(f"{args.sla_variable} {value}: {sla}: {'met' if met else 'not met'}")
            return met

        limit = largest(holds, args.sla_max)
        found = {
            "combination": point.folder,
            "sla": dict(sla.bounds),
            args.sla_variable: limit,
        }
        with (folder / "sla.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{point.folder}: {sla}: {args.sla_variable} {limit or 'not even 1'}")


class Sweep:
    """Dispatches to a sweep."""

    help = "Benchmark a server over combinations of settings and loads, and plot the results."
    takes_engine_options = False
    subcommands: ClassVar[Mapping[str, type[Command]]] = {
        "serve": SweepServe,
        "serve_sla": SweepServeSla,
        "plot": SweepPlot,
        "plot_pareto": SweepPareto,
    }

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing: all arguments belong to the subcommands."""

    def run(self, context: CommandContext) -> int:
        """Reject a call without a subcommand."""
        raise ConfigError(f"engine bench sweep needs a subcommand: {', '.join(self.subcommands)}.")


def largest(holds: Callable[[int], bool], limit: int) -> int:
    """Return the largest value from 1 to `limit` that holds, if all below hold; 0 for none.

    Doubles the value first, so that the server is not overloaded.
    """
    passing = 0
    value = 1
    while holds(value):
        if value == limit:
            return limit
        passing = value
        value = min(2 * value, limit)
    broken = value
    while broken - passing > 1:
        middle = (passing + broken) // 2
        passing, broken = (middle, broken) if holds(middle) else (passing, middle)
    return passing


def _at(args: argparse.Namespace, point: Point, value: int) -> Point:
    """Return a point with a value of the variable load."""
    name = f"{point.bench['_name']},{args.sla_variable}={value}" if "_name" in point.bench else None
    named = {} if name is None else {"_name": name}
    return Point(point.serve, {**point.bench, **named, args.sla_variable: value})
