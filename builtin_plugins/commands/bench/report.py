"""Reporting of all benchmarks: statistics, tables, JSON and progress bars."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import core
from builtin_plugins.commands.bench.plot import check_plot
from core.api import ConfigError

if TYPE_CHECKING:
    import argparse

PERCENTILES: Final = (10.0, 25.0, 50.0, 75.0, 90.0, 99.0)
BUSY: Final = 0.5
"""Load per core at the start above which a warning is printed."""


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the output flags."""
    parser.add_argument("--output-json", metavar="FILE", help="write all figures as JSON")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the figures: .png, .svg or .pdf (needs matplotlib)"
    )


def check_output(args: argparse.Namespace) -> None:
    """Fail early if results could not be written."""
    for flag, file in (("--output-json", args.output_json), ("--plot", args.plot)):
        if file is not None and not Path(file).resolve().parent.is_dir():
            raise ConfigError(f"{flag} {file}: the folder does not exist.")
    if args.plot is not None:
        check_plot(args.plot)


def check_counts(args: argparse.Namespace, **lows: int) -> None:
    """Raise `ConfigError` for a number below its minimum; `lows` are the minimums by argument."""
    for name, low in lows.items():
        value = getattr(args, name)
        if value is not None and value < low:
            raise ConfigError(
                f"--{name.replace('_', '-')} {value} is too small; use at least {low}."
            )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile with linear interpolation; 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 for no values."""
    return statistics.fmean(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    """Return the population standard deviation; 0 for no values."""
    return statistics.pstdev(values) if values else 0.0


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the default percentiles by their JSON names."""
    return {f"{percent:g}": percentile(values, percent) for percent in PERCENTILES}


def conditions() -> dict[str, Any]:
    """Return date, machine and load; call it before the measurement."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "engine": core.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def seconds(value_s: float) -> str:
    """Return a formatted time."""
    return f"{value_s:.3f} s" if value_s >= 1 else f"{1e3 * value_s:.2f} ms"


def print_table(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    listed = list(rows)
    width = max(len(name) for name, _ in listed)
    print(title)
    for name, figure in listed:
        print(f"  {name:<{width}}  {figure:>12}")


def print_columns(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with right-aligned values."""
    listed = [list(heads), *map(list, rows)]
    widths = [max(len(row[i]) for row in listed) for i in range(len(heads))]
    for row in listed:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def warn_if_busy(where: Mapping[str, Any]) -> None:
    """Print a warning if the machine was busy at the start."""
    load = where["load_average"]
    cpus = where["cpus"]
    if load is not None and cpus and load > BUSY * cpus:
        print(
            f"The machine was busy at the start: load {load:.1f} on {cpus} cores. "
            "Repeat on an idle machine."
        )


def write_json(file: str | None, result: Mapping[str, Any]) -> None:
    """Write a result if a file was given."""
    if file is not None:
        Path(file).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def bar(total: int, what: str, unit: str, *, disable: bool = False) -> Any:
    """Return a progress bar on standard error; silent if that is no terminal."""
    from tqdm import tqdm  # lazy: not needed for --help

    return tqdm(total=total, desc=what, unit=unit, dynamic_ncols=True, disable=disable or None)
