"""`engine bench sweep serve`: benchmarks each combination of server settings and load."""

from __future__ import annotations

import csv
import json
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.bench.report import check_counts, print_columns
from builtin_plugins.commands.bench.sweep_grid import (
    Point,
    Settings,
    command,
    points,
    read_settings,
)
from core.api import ConfigError, EngineError

if TYPE_CHECKING:
    import argparse

    from core.api import CommandContext

POLL_S: Final = 0.5
COLUMNS: Final = (
    "request_throughput",
    "output_throughput",
    "median_ttft_ms",
    "p99_ttft_ms",
    "median_tpot_ms",
)


class SweepServe:
    """Sweep; each run has its own result file, so a sweep can be resumed (`--resume`)."""

    help = "Start a server for each combination of settings and benchmark it under each load."
    takes_engine_options = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add commands, settings and output flags."""
        _add_commands(parser)
        _add_runs(parser)

    def run(self, context: CommandContext) -> int:
        """Run missing points, then write and print all results."""
        args = context.args
        check_counts(args, num_runs=1)
        grid = grid_of(args)
        folder = folder_of(args)
        if args.dry_run:
            for settings, each in grid:
                print(shlex.join(command(args.serve_cmd, settings)))
                for point in each:
                    print(f"  {dry_run_line(args, point)}")
            return 0
        folder.mkdir(parents=True, exist_ok=True)
        for settings, each in grid:
            if any(not file.is_file() for point in each for file in _files(args, folder, point)):
                with served(args, settings) as url:
                    for point in each:
                        measure(args, folder, point, url)
        write(
            folder,
            [row for _, each in grid for point in each for row in rows_of(args, folder, point)],
        )
        return 0


def _add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands of a run and their settings."""
    add = parser.add_argument
    add(
        "--serve-cmd",
        required=True,
        metavar="CMD",
        help="command that starts the server: 'engine serve MODEL --port 8000'",
    )
    add(
        "--bench-cmd",
        required=True,
        metavar="CMD",
        help="command that measures it: 'engine bench serve --port 8000 ...'",
    )
    add(
        "--serve-params",
        metavar="FILE",
        help="JSON: a list of settings of the server, or an object of them by name",
    )
    add(
        "--bench-params",
        metavar="FILE",
        help="the same for the benchmark; each runs with every server",
    )
    add(
        "--after-bench-cmd",
        metavar="CMD",
        help="run after each benchmark; default: POST /reset_prefix_cache",
    )


def _add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the runs and of their results."""
    add = parser.add_argument
    add(
        "-o",
        "--output-dir",
        default="results",
        metavar="DIR",
        help="folder of results (default: results)",
    )
    add(
        "--num-runs",
        type=int,
        default=3,
        metavar="N",
        help="runs of each combination (default: 3)",
    )
    add(
        "--server-ready-timeout",
        type=float,
        default=600,
        metavar="S",
        help="seconds to wait for the server (default: 600)",
    )
    add("--show-stdout", action="store_true", help="show the output of servers and benchmarks")
    add("--dry-run", action="store_true", help="print the commands without running them")
    add(
        "--resume",
        metavar="NAME",
        help="resume a sweep in --output-dir; skips measured runs",
    )


def grid_of(args: argparse.Namespace) -> list[tuple[Settings, list[Point]]]:
    """Return the settings of each server with its points. Raises `ConfigError`."""
    serve = read_settings("--serve-params", args.serve_params)
    return list(points(serve, read_settings("--bench-params", args.bench_params)))


def folder_of(args: argparse.Namespace) -> Path:
    """Return the result folder: a new one, or the one to resume."""
    if args.resume is None:
        return Path(args.output_dir) / time.strftime("%Y%m%d-%H%M%S")
    folder: Path = Path(args.output_dir) / args.resume
    if not folder.is_dir():
        raise ConfigError(f"--resume {args.resume}: there is no such folder in {args.output_dir}.")
    return folder


def dry_run_line(args: argparse.Namespace, point: Point) -> str:
    """Return the dry-run line of a point."""
    return f"{args.num_runs} x {shlex.join(_bench(args, point, Path('RESULT.json')))}"


def _files(args: argparse.Namespace, folder: Path, point: Point) -> list[Path]:
    return [folder / point.folder / f"run={number}.json" for number in range(args.num_runs)]


def _bench(args: argparse.Namespace, point: Point, file: Path) -> list[str]:
    return [*command(args.bench_cmd, point.bench), "--output-json", str(file)]


@contextmanager
def served(args: argparse.Namespace, settings: Mapping[str, Any]) -> Iterator[str]:
    """Run a server during the context; yield its address.

    Raises `EngineError` if it does not become ready.
    """
    words = command(args.serve_cmd, settings)
    print(f"Starting {shlex.join(words)}")
    process = subprocess.Popen(words, stdout=None if args.show_stdout else subprocess.DEVNULL)
    try:
        url = _address(words)
        until_s = time.monotonic() + args.server_ready_timeout
        while not _answers(f"{url}/health"):
            if process.poll() is not None:
                raise EngineError(
                    f"the server ended with exit status {process.returncode}: {shlex.join(words)}"
                )
            if time.monotonic() > until_s:
                raise EngineError(
                    f"nothing answers at {url} for {args.server_ready_timeout:g} s "
                    "(--server-ready-timeout)."
                )
            time.sleep(POLL_S)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def measure(args: argparse.Namespace, folder: Path, point: Point, url: str) -> None:
    """Run the missing benchmarks of a point."""
    for file in _files(args, folder, point):
        if not file.is_file():
            _measure(args, point, file)
            _after(args, url)


def _measure(args: argparse.Namespace, point: Point, file: Path) -> None:
    """Run one benchmark; the result file appears only when complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".part")
    words = _bench(args, point, unfinished)
    print(f"Measuring {point.folder}, {file.stem}")
    done = subprocess.run(
        words, stdout=None if args.show_stdout else subprocess.DEVNULL, check=False
    )
    if done.returncode != 0 or not unfinished.is_file():
        raise EngineError(
            f"the benchmark ended with exit status {done.returncode}: {shlex.join(words)}"
        )
    unfinished.rename(file)


def _after(args: argparse.Namespace, url: str) -> None:
    """Reset the server's state between runs, as far as possible."""
    if args.after_bench_cmd is not None:
        subprocess.run(shlex.split(args.after_bench_cmd), check=True)
    elif not _answers(f"{url}/reset_prefix_cache", method="POST"):
        print("The server's prefix cache was not reset: start it with --enable-operator-routes.")


def _answers(url: str, method: str = "GET") -> bool:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, method=method), timeout=10
        ) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


def _address(words: list[str]) -> str:
    """Return the server address from its command line."""
    given = {"--host": "127.0.0.1", "--port": "8000"}
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in given:
            given[name] = (
                value if equals else words[index + 1] if index + 1 < len(words) else given[name]
            )
    host = "127.0.0.1" if given["--host"] in ("0.0.0.0", "::") else given["--host"]
    return f"http://{host}:{given['--port']}"


def rows_of(args: argparse.Namespace, folder: Path, point: Point) -> Iterator[dict[str, Any]]:
    """Yield the results of a point's runs with their settings."""
    for file in _files(args, folder, point):
        measured = json.loads(file.read_text(encoding="utf-8"))
        figures = {
            name: value for name, value in measured.items() if isinstance(value, (int, float, str))
        }
        yield {
            "combination": point.folder,
            "run": file.stem.partition("=")[2],
            **point.serve,
            **point.bench,
            **figures,
        }


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write all rows as JSON and CSV, and print a summary."""
    (folder / "summary.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (folder / "summary.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    columns = [name for name in COLUMNS if any(name in row for row in rows)]
    cells = (
        [row["combination"], row["run"], *(f"{row.get(name, 0):.2f}" for name in columns)]
        for row in rows
    )
    print_columns(["combination", "run", *columns], cells)
    print(f"Written to {folder}")
