"""`engine bench sweep serve_sla`: the largest load under which a server keeps what was promised."""

from __future__ import annotations

import json
import operator
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from builtin_plugins.commands.bench.grid import Point, read_settings
from builtin_plugins.commands.bench.pictures import SweepPareto, SweepPlot
from builtin_plugins.commands.bench.report import check_counts
from builtin_plugins.commands.bench.sweep import (
    SweepServe,
    folder_of,
    grid_of,
    measure,
    rows_of,
    served,
    shown_runs,
    write,
)
from core.api import ConfigError

if TYPE_CHECKING:
    import argparse

    from core.api import Command

VARIABLES: Final = ("request_rate", "max_concurrency")
COMPARED: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_PROMISE: Final = re.compile(r"(<=|>=|<|>)\s*([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Promise:
    """Bounds of figures, all of which are to hold."""

    bounds: Mapping[str, str]
    """By figure: `<=500` and the like."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for what is no bound."""
        for name, bound in self.bounds.items():
            if name != "_name" and not _PROMISE.fullmatch(str(bound)):
                raise ConfigError(
                    f'--sla-params: {name} has {bound!r}; give a comparison, such as "<=500".'
                )

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {bound}" for name, bound in self.bounds.items() if name != "_name"
        )

    def holds(self, figures: Mapping[str, float]) -> bool:
        """Say whether figures keep it. Raises `ConfigError` for one that was not measured."""
        for name, bound in self.bounds.items():
            if name == "_name":
                continue
            if name not in figures:
                known = ", ".join(sorted(figures))
                raise ConfigError(
                    f"--sla-params: the benchmark tells no {name!r}; it tells {known}."
                )
            compared, limit = _PROMISE.fullmatch(str(bound)).groups()  # type: ignore[union-attr]  # checked at the start
            if not COMPARED[compared](figures[name], float(limit)):
                return False
        return True


class SweepServeSla(SweepServe):
    """As a sweep; what is measured already is not again."""

    help = "Find the largest load under which a server keeps bounds of latency or throughput."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what is promised, and what grows until it does not hold."""
        super().add_arguments(parser)
        add = parser.add_argument
        add(
            "--sla-params",
            required=True,
            metavar="FILE",
            help='JSON: bounds of figures, or several of them: [{"p99_ttft_ms": "<=500"}]',
        )
        add(
            "--sla-variable",
            choices=VARIABLES,
            default=VARIABLES[0],
            help="what grows (default: request_rate)",
        )
        add(
            "--sla-max",
            type=int,
            default=1024,
            metavar="N",
            help="no larger values are tried (default: 1024)",
        )

    def run(self, context: Any) -> int:
        """Search for each combination and each promise, then write and print all figures."""
        args = context.args
        check_counts(args, num_runs=1, sla_max=1)
        grid = grid_of(args)
        folder = folder_of(args)
        promises = [Promise(each) for each in read_settings("--sla-params", args.sla_params)]
        if any(args.sla_variable in point.bench for _, each in grid for point in each):
            raise ConfigError(
                f"--bench-params: {args.sla_variable} is what is searched for; leave it out."
            )
        if args.dry_run:
            for _, each in grid:
                for point in each:
                    print(f"up to {args.sla_max}: {shown_runs(args, _at(args, point, 1))}")
            return 0
        folder.mkdir(parents=True, exist_ok=True)
        tried: dict[str, Point] = {}
        for settings, each in grid:
            with served(args, settings) as url:
                for point in each:
                    for promise in promises:
                        self._search(args, folder, point, promise, url, tried)
        write(folder, [row for point in tried.values() for row in rows_of(args, folder, point)])
        return 0

    def _search(
        self,
        args: argparse.Namespace,
        folder: Path,
        point: Point,
        promise: Promise,
        url: str,
        tried: dict[str, Point],
    ) -> None:
        def holds(value: int) -> bool:
            at = _at(args, point, value)
            tried[at.folder] = at
            measure(args, folder, at, url)
            rows = list(rows_of(args, folder, at))
            numbers = [name for name, found in rows[0].items() if isinstance(found, (int, float))]
            kept = promise.holds(
                {name: statistics.fmean(row[name] for row in rows) for name in numbers}
            )
            print(f"{args.sla_variable} {value}: {promise}: {'kept' if kept else 'not kept'}")
            return kept

        found = largest(holds, args.sla_max)
        told = {
            "combination": point.folder,
            "promise": dict(promise.bounds),
            args.sla_variable: found,
        }
        with (folder / "sla.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")
        print(f"{point.folder}: {promise}: {args.sla_variable} {found if found else 'not even 1'}")


class Sweep:
    """What is swept is chosen by the subcommand."""

    help = "Measure a server over combinations of its settings and of its load, and draw what was measured."
    takes_engine_options = False
    subcommands: ClassVar[Mapping[str, type[Command]]] = {
        "serve": SweepServe,
        "serve_sla": SweepServeSla,
        "plot": SweepPlot,
        "plot_pareto": SweepPareto,
    }

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing: all arguments belong to the subcommands."""

    def run(self, context: Any) -> int:
        """Refuse: without a subcommand there is nothing to sweep."""
        raise ConfigError(f"engine bench sweep needs a subcommand: {', '.join(self.subcommands)}.")


def largest(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest value from 1 to `most` for which something holds, if it holds for all
    below; 0 where for none.

    Values double at first, so that a server is not flooded with what it cannot take.
    """
    kept = 0
    value = 1
    while holds(value):
        if value == most:
            return most
        kept = value
        value = min(2 * value, most)
    broken = value
    while broken - kept > 1:
        middle = (kept + broken) // 2
        kept, broken = (middle, broken) if holds(middle) else (kept, middle)
    return kept


def _at(args: argparse.Namespace, point: Point, value: int) -> Point:
    """Return a point with a value of what grows."""
    name = f"{point.bench['_name']},{args.sla_variable}={value}" if "_name" in point.bench else None
    named = {} if name is None else {"_name": name}
    return Point(point.serve, {**point.bench, **named, args.sla_variable: value})
