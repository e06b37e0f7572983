"""`engine bench startup`: time from process start to first token by stage, cold and warm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.bench.plot import plot_bars
from builtin_plugins.commands.bench.report import (
    add_output,
    bar,
    check_counts,
    check_output,
    conditions,
    mean,
    percentile,
    percentiles,
    print_columns,
    warn_if_busy,
    write_json,
)
from core.api import ConfigError, EngineConfig, EngineError

if TYPE_CHECKING:
    import argparse

    from core.api import CommandContext

STAGES: Final = ("interpreter", "imports", "model", "first token", "end")
"""Stages of a run; `end` is the shutdown after the first token."""
NO_COLD: Final = (
    "No cold starts: only the files of a model in a local folder can be dropped from the page "
    "cache."
)
LAST_LINES: Final = 12
"""Lines of a failed process's output that are reported."""


class Startup:
    """Starts a process per run.

    Cold: the model's files are dropped from the page cache first.
    """

    help = "Measure the time from process start to first token, by stage."
    takes_engine_options = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add model, number of runs and output."""
        parser.add_argument(
            "model", nargs="?", help="local folder or hub id; without one, a small demo model"
        )
        parser.add_argument(
            "--num-iters-warm", type=int, default=3, metavar="N", help="warm starts (default: 3)"
        )
        parser.add_argument(
            "--num-iters-cold",
            type=int,
            default=3,
            metavar="N",
            help="starts after the model's files were dropped from the page cache; folders only "
            "(default: 3)",
        )
        add_output(parser)

    def run(self, context: CommandContext) -> int:
        """Measure and report."""
        args = context.args
        check_counts(args, num_iters_warm=0, num_iters_cold=0)
        if not args.num_iters_warm + args.num_iters_cold:
            raise ConfigError(
                "nothing to measure: --num-iters-warm and --num-iters-cold are both 0."
            )
        check_output(args)
        where = conditions()
        keywords = _keywords(context)
        files = _model_files(context.config.model.model)
        num_cold = args.num_iters_cold if files and hasattr(os, "posix_fadvise") else 0
        if not num_cold + args.num_iters_warm:
            raise ConfigError(f"{NO_COLD} Give --num-iters-warm.")
        runs: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
        with bar(1 + num_cold + args.num_iters_warm, "Starts", "start") as progress:
            # The first run is not counted: it may compile Python bytecode.
            for kind in ("", *["cold"] * num_cold, *["warm"] * args.num_iters_warm):
                if kind == "cold":
                    _forget(files)
                times = _start(keywords)
                if kind:
                    runs[kind].append(times)
                progress.update(1)
        result: dict[str, Any] = {
            kind: _summary(times) for kind, times in runs.items() if times
        } | {
            "model": context.config.model.model,
            "conditions": where,
        }
        _show(result, args.num_iters_cold, num_cold)
        write_json(args.output_json, result)
        if args.plot is not None:
            bars: dict[str, dict[str, float]] = {
                kind: {stage: result[kind]["stages"][stage] for stage in STAGES[:-1]}
                for kind in ("cold", "warm")
                if kind in result
            }
            plot_bars(
                args.plot, f"Start to first token, {context.config.model.model}", "seconds", bars
            )
        return 0


def _keywords(context: CommandContext) -> dict[str, Any]:
    """Return all set options as keywords of `LLM`."""
    config: EngineConfig = context.config
    values: dict[str, Any] = dict(config.options)
    for section in fields(config):
        if section.name != "options":
            part = getattr(config, section.name)
            values.update({name.name: getattr(part, name.name) for name in fields(part)})
    chosen = {
        name: values[name] for name in values if context.provenance.origin_of(name) != "default"
    }
    return {"model": config.model.model, "log_level": config.observability.log_level} | chosen


def _model_files(model: str) -> list[Path]:
    """Return the files of a model that is a folder."""
    return (
        [path for path in Path(model).rglob("*") if path.is_file()] if os.path.isdir(model) else []
    )


def _forget(files: Sequence[Path]) -> None:
    """Have the system drop files from its page cache.

    It takes advice for single files; all of it only from root.
    """
    os.sync()  # dirty pages cannot be dropped
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _start(keywords: Mapping[str, Any]) -> dict[str, float]:
    """Run one process; return the seconds of each stage.

    Raises `EngineError` with its output on failure.
    """
    command = [sys.executable, "-P", "-m", "builtin_plugins.commands.bench.first_token"]
    started = time.monotonic()
    done = subprocess.run(
        command, input=json.dumps(keywords), capture_output=True, text=True, check=False
    )
    ended = time.monotonic()
    output: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"error": None}
    if done.returncode != 0 or output["error"]:
        last = "\n".join(done.stderr.splitlines()[-LAST_LINES:])
        raise EngineError(f"the started process failed: {output['error'] or ''}\n{last}".rstrip())
    times = {}
    before = started
    for stage in STAGES:
        after = ended if stage == "end" else output["times"][stage]
        times[stage] = after - before
        before = after
    return times


def _summary(runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    totals = [sum(run[stage] for stage in STAGES[:-1]) for run in runs]
    return {
        "first_token_s": percentile(totals, 50),
        "mean_first_token_s": mean(totals),
        "percentiles": percentiles(totals),
        "times": totals,
        "stages": {stage: percentile([run[stage] for run in runs], 50) for stage in STAGES},
    }


def _show(result: Mapping[str, Any], requested_cold: int, num_cold: int) -> None:
    kinds = [kind for kind in ("cold", "warm") if kind in result]
    print(f"Start to first token of {result['model']}, seconds, medians")
    heads = ("", *STAGES[:-1], "together", "runs")
    rows = (
        (
            kind,
            *(f"{result[kind]['stages'][stage]:.2f}" for stage in STAGES[:-1]),
            f"{result[kind]['first_token_s']:.2f}",
            str(len(result[kind]["times"])),
        )
        for kind in kinds
    )
    print_columns(heads, rows)
    if num_cold:
        print(
            "Cold: the model's files were dropped from the page cache; Python and its libraries "
            "stay in it, for"
        )
        print("that needs root (`echo 3 > /proc/sys/vm/drop_caches`) and affects other processes.")
    elif requested_cold:
        print(NO_COLD)
    warn_if_busy(result["conditions"])
