"""`engine bench latency`: the time of one batch at a time, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from builtin_plugins.commands.bench.offline import (
    add_sampling,
    check_lengths,
    open_engine,
    refuse_failures,
    sampling,
    units_of,
)
from builtin_plugins.commands.bench.plot import plot_distributions
from builtin_plugins.commands.bench.report import (
    add_output,
    bar,
    check_counts,
    check_output,
    conditions,
    mean,
    percentiles,
    print_table,
    seconds,
    warn_if_busy,
    write_json,
)
from builtin_plugins.commands.bench.workload import Sample

if TYPE_CHECKING:
    import argparse

    from core import LLM
    from core.api import CommandContext


class Latency:
    """Latency benchmark; every batch has new prompts, so the prefix cache has no effect."""

    help = "Measure the latency of one batch at a time in this process."
    takes_engine_options = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add model, batch and output."""
        parser.add_argument(
            "model", nargs="?", help="local folder or hub id; without one, a small demo model"
        )
        self.add_own_flags(parser)

    def add_own_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add batch and output."""
        for name, default, text in (
            ("input-len", 32, "tokens of each prompt"),
            ("output-len", 128, "tokens to generate for each"),
            ("batch-size", 8, "prompts in a batch"),
            ("num-iters-warmup", 3, "batches before the measured ones"),
            ("num-iters", 10, "measured batches"),
        ):
            text = f"{text} (default: {default})"
            parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)
        parser.add_argument(
            "--use-beam-search", action="store_true", help="search --n beams for each prompt"
        )
        add_sampling(parser)
        add_output(parser)

    def run(self, context: CommandContext) -> int:
        """Measure and report."""
        self.measure(context.args, partial(open_engine, context))
        return 0

    def measure(self, args: argparse.Namespace, start: Callable[[], LLM]) -> dict[str, Any]:
        """Start an engine, measure, report, and return the result."""
        check_counts(
            args, input_len=1, output_len=1, batch_size=1, n=1, num_iters=1, num_iters_warmup=0
        )
        check_output(args)
        where = conditions()
        with start() as llm:
            model = llm.config.model.model
            latencies = _measure(llm, args, Random(llm.config.model.seed))
        result = {
            "avg_latency": mean(latencies),
            "latencies": latencies,
            "percentiles": percentiles(latencies),
            "model": model,
            **{
                name: getattr(args, name)
                for name in ("input_len", "output_len", "batch_size", "n", "use_beam_search")
            },
            "conditions": where,
        }
        _show(result)
        write_json(args.output_json, result)
        if args.plot is not None:
            title = f"{args.batch_size} x ({args.input_len} + {args.output_len}) tokens, {model}"
            plot_distributions(
                args.plot, title, {"time of a batch": [1e3 * s for s in latencies]}, "milliseconds"
            )
        return result


def _measure(llm: LLM, args: argparse.Namespace, rng: Random) -> list[float]:
    """Return the seconds of each measured batch."""
    units = units_of(llm)
    from core import BeamSearchParams  # lazy: torch is slow to import

    params = sampling(args, args.output_len)
    beams = BeamSearchParams(args.n, args.output_len, ignore_eos=True)
    check_lengths(llm, [Sample([], args.output_len, args.input_len)])
    latencies = []
    with bar(args.num_iters_warmup + args.num_iters, "Batches", "batch") as progress:
        for _ in range(args.num_iters_warmup + args.num_iters):
            prompts: list[Any] = [
                {"prompt_token_ids": units.draw(rng, args.input_len)}
                for _ in range(args.batch_size)
            ]
            started = time.perf_counter()
            if args.use_beam_search:
                llm.beam_search(prompts, beams)
                latencies.append(time.perf_counter() - started)
            else:
                outputs = llm.generate(prompts, params, use_tqdm=False)
                latencies.append(time.perf_counter() - started)
                refuse_failures(outputs)
            progress.update(1)
    return latencies[args.num_iters_warmup :]


def _show(result: dict[str, Any]) -> None:
    batch = f"{result['batch_size']} x ({result['input_len']} + {result['output_len']}) tokens"
    median = result["percentiles"]["50"]
    tokens = result["batch_size"] * result["output_len"] * result["n"]
    print_table(
        f"Latency of {result['model']}, {batch}, {len(result['latencies'])} batches",
        [
            ("median", seconds(median)),
            ("mean", seconds(result["avg_latency"])),
            *(
                (f"p{name}", seconds(value))
                for name, value in result["percentiles"].items()
                if name != "50"
            ),
            ("generated tokens a second (median)", f"{tokens / median:,.1f}"),
        ],
    )
    warn_if_busy(result["conditions"])
