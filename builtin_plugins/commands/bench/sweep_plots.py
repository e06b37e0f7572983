"""`engine bench sweep plot` and `plot_pareto`: plots of sweep results."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.bench.plot import Curve, check_plot, plot_frontier, plot_grid
from core.api import ConfigError, did_you_mean

if TYPE_CHECKING:
    import argparse

    from core.api import CommandContext

Row = Mapping[str, Any]

SUMMARY: Final = "summary.json"
COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": eq, "!=": ne, "<=": le, ">=": ge, "<": lt, ">": gt,
}  # fmt: skip
_CONDITION: Final = re.compile(r"\s*([\w.]+)\s*(==|!=|<=|>=|<|>)\s*(.+?)\s*")


@dataclass(frozen=True, slots=True)
class Measured:
    """Result rows of one or several sweeps: settings and metrics of each run."""

    rows: Sequence[Row]

    @classmethod
    def read(cls, folder: Path) -> Measured:
        """Read the summary of a sweep, or of all sweeps in a folder. Raises `ConfigError`."""
        files = (
            [folder / SUMMARY]
            if (folder / SUMMARY).is_file()
            else sorted(folder.glob(f"*/{SUMMARY}"))
        )
        if not files:
            raise ConfigError(
                f"{folder} has no {SUMMARY}; expected the folder of a sweep, or the --output-dir "
                "of several."
            )
        try:
            rows = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))]
        except ValueError as error:
            raise ConfigError(f"{folder}: a {SUMMARY} cannot be read: {error}.") from error
        return cls(rows)

    def where(self, conditions: str) -> Measured:
        """Return the rows that match all conditions, such as
        `max_concurrency<=64,backend==openai`.
        """
        rows = self.rows
        for condition in filter(None, conditions.split(",")):
            found = _CONDITION.fullmatch(condition)
            if found is None:
                raise ConfigError(
                    f"--filter-by {condition!r}: give a comparison, such as max_concurrency<=64."
                )
            name = found[1]
            compared = COMPARED[found[2]]
            limit = _value(found[3])
            self.check("--filter-by", [name])
            rows = [row for row in rows if name in row and _holds(compared, row[name], limit)]
        if not rows:
            raise ConfigError(f"--filter-by {conditions}: no runs match.")
        return Measured(rows)

    def check(self, flag: str, names: Iterable[str]) -> None:
        """Raise `ConfigError` for a name that is neither a setting nor a metric."""
        known = sorted({name for row in self.rows for name in row})
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"{flag} {name}: no run has it{did_you_mean(name, known) or '.'} There are "
                    f"{', '.join(known)}."
                )

    def by(self, names: Sequence[str]) -> dict[str, Measured]:
        """Return the rows grouped by settings, labelled and sorted by value."""
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.rows:
            groups.setdefault(tuple(row.get(name) for name in names), []).append(row)
        ordered = sorted(groups.items(), key=lambda group: [_sort_key(value) for value in group[0]])
        return {
            ", ".join(f"{n}={v}" for n, v in zip(names, key, strict=True)): Measured(rows)
            for key, rows in ordered
        }

    def curve(self, x: str, y: str) -> Curve:
        """Return y over x: mean and standard deviation of runs with the same x."""
        found: dict[float, list[float]] = {}
        for row in self.rows:
            if isinstance(row.get(x), (int, float)) and isinstance(row.get(y), (int, float)):
                found.setdefault(float(row[x]), []).append(float(row[y]))
        xs = sorted(found)
        return Curve(
            xs,
            [statistics.fmean(found[at]) for at in xs],
            [statistics.pstdev(found[at]) for at in xs],
        )

    def means(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the first row of each combination with the means of some metrics."""
        groups = self.by(["combination"]).values()
        return [
            {
                **group.rows[0],
                **{
                    name: statistics.fmean(float(row[name]) for row in group.rows) for name in names
                },
            }
            for group in groups
        ]


class SweepPlot:
    """Line plots: one file per figure group, panels by row and column, one curve per group."""

    help = "Plot the results of a sweep: one metric over another, with a curve per setting."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add source and plot flags."""
        add_source(parser)
        add = parser.add_argument
        for name, text in (
            ("fig", "one figure per value of these settings"),
            ("row", "one row of panels per value"),
            ("col", "one column of panels per value"),
            ("curve", "one curve per value"),
        ):
            add(f"--{name}-by", default="", metavar="NAME,...", help=text)
        add(
            "--var-x",
            default="request_throughput",
            metavar="NAME",
            help="(default: request_throughput)",
        )
        add("--var-y", default="p99_e2el_ms", metavar="NAME", help="(default: p99_e2el_ms)")
        add("--scale-x", choices=("linear", "log"), default="linear", help="(default: linear)")
        add("--scale-y", choices=("linear", "log"), default="linear", help="(default: linear)")
        add(
            "--no-error-bars",
            action="store_true",
            help="hide the standard deviation of runs",
        )

    def run(self, context: CommandContext) -> int:
        """Draw."""
        args = context.args
        measured = read(args)
        by = {name: _names(getattr(args, f"{name}_by")) for name in ("fig", "row", "col", "curve")}
        for name, group_names in by.items():
            measured.check(f"--{name}-by", group_names)
        measured.check("--var-x", [args.var_x])
        measured.check("--var-y", [args.var_y])
        for title, of_figure in measured.by(by["fig"]).items():
            columns = list(of_figure.by(by["col"]))
            grid = [
                [
                    (
                        _joined(row, column),
                        _curves(of_row.by(by["col"]).get(column), by["curve"], args),
                    )
                    for column in columns
                ]
                for row, of_row in of_figure.by(by["row"]).items()
            ]
            file = target(args, title)
            if not args.dry_run:
                plot_grid(
                    str(file),
                    title,
                    grid,
                    (args.var_x, args.var_y),
                    (args.scale_x, args.scale_y),
                    bars=not args.no_error_bars,
                )
            print(f"{'Would draw' if args.dry_run else 'Drawn'}: {file}")
        return 0


class SweepPareto:
    """Pareto plot: tokens per second per user over tokens per second per device."""

    help = "Plot tokens per second per user over tokens per second per device, with the frontier."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add source, user and device flags."""
        add_source(parser)
        add = parser.add_argument
        add(
            "--user-count-var",
            default="max_concurrency",
            metavar="NAME",
            help="users (default: max_concurrency)",
        )
        add(
            "--gpu-count-var",
            metavar="NAME",
            help="devices, such as tensor_parallel_size (default: one)",
        )
        add(
            "--label-by",
            default="max_concurrency",
            metavar="NAME,...",
            help="labels of the frontier points",
        )

    def run(self, context: CommandContext) -> int:
        """Draw."""
        args = context.args
        measured = read(args)
        labels = _names(args.label_by)
        counted = [args.user_count_var, *([args.gpu_count_var] if args.gpu_count_var else [])]
        measured.check("--user-count-var", counted[:1])
        measured.check("--gpu-count-var", counted[1:])
        measured.check("--label-by", labels)
        measured.check("output_throughput", ["output_throughput"])
        points = []
        for row in measured.means(["output_throughput", *counted]):
            users = row[args.user_count_var]
            devices = row[args.gpu_count_var] if args.gpu_count_var else 1
            if users > 0 and devices > 0:
                label = ", ".join(f"{name}={row.get(name)}" for name in labels)
                points.append(
                    (row["output_throughput"] / users, row["output_throughput"] / devices, label)
                )
        file = target(args, "pareto")
        if not args.dry_run:
            plot_frontier(
                str(file),
                points,
                pareto_frontier(points),
                ("tokens per second per user", "tokens per second per device"),
            )
        print(f"{'Would draw' if args.dry_run else 'Drawn'}: {file}")
        return 0


def pareto_frontier(points: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Return the Pareto frontier, sorted by the first coordinate."""
    found: list[tuple[float, float, str]] = []
    for point in sorted(points, key=lambda each: (-each[0], -each[1])):
        if not found or point[1] > found[-1][1]:
            found.append(point)
    return found[::-1]


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add input and output flags."""
    add = parser.add_argument
    add("OUTPUT_DIR", help="folder of a sweep, or the --output-dir of several")
    add("--fig-dir", metavar="DIR", help="folder of plots (default: that of the results)")
    add(
        "--fig-name",
        default="FIGURE",
        metavar="NAME",
        help="prefix of file names (default: FIGURE)",
    )
    add("--fig-type", choices=("png", "svg", "pdf"), default="png", help="(default: png)")
    add(
        "--filter-by",
        default="",
        metavar="CONDITION,...",
        help="only runs with, for example, max_concurrency<=64",
    )
    add("--dry-run", action="store_true", help="print the file names only")


def read(args: argparse.Namespace) -> Measured:
    """Return the runs to draw."""
    if not args.dry_run:
        check_plot(str(target(args, "")))
    return Measured.read(Path(args.OUTPUT_DIR)).where(args.filter_by)


def target(args: argparse.Namespace, title: str) -> Path:
    """Return the path of a plot."""
    folder = Path(args.fig_dir or args.OUTPUT_DIR)
    if not args.dry_run:
        folder.mkdir(parents=True, exist_ok=True)
    words = re.sub(r"[^\w=,.]+", "_", title)
    return folder / f"{args.fig_name}{'-' if words else ''}{words}.{args.fig_type}"


def _curves(
    measured: Measured | None, names: Sequence[str], args: argparse.Namespace
) -> dict[str, Curve]:
    groups = {} if measured is None else measured.by(names)
    return {label: rows.curve(args.var_x, args.var_y) for label, rows in groups.items()}


def _names(joined: str) -> list[str]:
    return [name.strip() for name in joined.split(",") if name.strip()]


def _joined(*titles: str) -> str:
    return ", ".join(filter(None, titles))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip("'\"")


def _holds(compared: Callable[[Any, Any], bool], value: Any, limit: Any) -> bool:
    try:
        return compared(value, limit)
    except TypeError:  # text and numbers are not ordered
        return False


def _sort_key(value: Any) -> tuple[bool, float, str]:
    is_number = isinstance(value, (int, float))
    return not is_number, float(value) if is_number else 0.0, str(value)
