"""`engine bench throughput`: tokens per second of many requests at once, in this process."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from builtin_plugins.commands.bench.offline import (
    add_sampling,
    check_lengths,
    draft_counts,
    generated,
    open_engine,
    refuse_failures,
    sampling,
    units_of,
)
from builtin_plugins.commands.bench.plot import plot_bars
from builtin_plugins.commands.bench.report import (
    add_output,
    check_counts,
    check_output,
    conditions,
    percentile,
    print_table,
    seconds,
    warn_if_busy,
    write_json,
)
from builtin_plugins.commands.bench.workload import Sample, add_dataset, check_dataset, make_samples

if TYPE_CHECKING:
    from builtin_plugins.commands.bench.async_engine import AsyncEngine
    from core import LLM
    from core.api import CommandContext

Measured = tuple[float, int, int, tuple[int, int]]


class Throughput:
    """Throughput benchmark: all requests are queued at the start."""

    help = "Measure the throughput of many requests in this process."
    takes_engine_options = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add model, requests and output."""
        parser.add_argument(
            "model", nargs="?", help="local folder or hub id; without one, a small demo model"
        )
        self.add_own_flags(parser)

    def add_own_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add requests and output."""
        parser.add_argument(
            "--backend",
            choices=("vllm",),
            default="vllm",
            help="vLLM's name of this engine",
        )
        parser.add_argument(
            "--async-engine",
            action="store_true",
            help="measure `AsyncLLM`, the engine of servers, in a process of its own",
        )
        parser.add_argument(
            "--num-iters", type=int, default=1, metavar="N", help="measured runs (default: 1)"
        )
        parser.add_argument(
            "--num-warmups",
            type=int,
            default=8,
            metavar="N",
            help="short warmup requests (default: 8)",
        )
        add_sampling(parser)
        add_dataset(parser, num_prompts=100)
        add_output(parser)

    def run(self, context: CommandContext) -> int:
        """Measure and report."""
        is_async = context.args.async_engine
        self.measure(context.args, partial(open_engine, context, is_async=is_async))
        return 0

    def measure(
        self, args: argparse.Namespace, start: Callable[[], LLM | AsyncEngine]
    ) -> dict[str, Any]:
        """Start an engine, measure, report, and return the result."""
        check_counts(args, num_prompts=1, input_len=1, num_iters=1, num_warmups=0, n=1)
        check_dataset(args)
        check_output(args)
        where = conditions()
        with start() as llm:
            rng = Random(llm.config.model.seed)
            units = units_of(llm)
            rounds = [make_samples(args, units, rng) for _ in range(args.num_iters)]
            for samples in rounds:
                check_lengths(llm, samples)
            warm = make_samples(
                argparse.Namespace(**vars(args) | {"num_prompts": args.num_warmups}), units, rng
            )
            _generate(
                llm,
                [replace(sample, output_tokens=min(8, sample.output_tokens)) for sample in warm],
                args,
            )
            measured = [_generate(llm, samples, args) for samples in rounds]
            model = llm.config.model.model
        result = _result(measured, args) | {"model": model, "conditions": where}
        _show(result)
        write_json(args.output_json, result)
        if args.plot is not None:
            rates = {
                f"run {i + 1}": {"prompt": prompt / elapsed, "generated": output / elapsed}
                for i, (elapsed, prompt, output, _) in enumerate(measured)
            }
            plot_bars(args.plot, f"Throughput of {model}", "tokens a second", rates)
        return result


def _generate(llm: LLM | AsyncEngine, samples: list[Sample], args: argparse.Namespace) -> Measured:
    """Return seconds, prompt tokens, generated tokens and draft counts."""
    prompts: list[Any] = [
        sample.prompt if isinstance(sample.prompt, str) else {"prompt_token_ids": sample.prompt}
        for sample in samples
    ]
    params = [sampling(args, sample.output_tokens) for sample in samples]
    started = time.perf_counter()
    outputs = llm.generate(prompts, params)
    elapsed = time.perf_counter() - started
    refuse_failures(outputs)
    prompt_tokens = sum(len(output.prompt_token_ids or ()) for output in outputs)
    return elapsed, prompt_tokens, generated(outputs), draft_counts(outputs)


def _result(measured: list[Measured], args: argparse.Namespace) -> dict[str, Any]:
    """Return the run of median throughput, and the times of all."""
    elapsed, prompt, output, _ = sorted(measured, key=lambda run: (run[1] + run[2]) / run[0])[
        len(measured) // 2
    ]
    times = [run[0] for run in measured]
    drafts, accepted = (sum(run[3][part] for run in measured) for part in (0, 1))
    return {
        **({"acceptance_length": 1 + accepted / drafts} if drafts else {}),
        "elapsed_time": elapsed,
        "num_requests": args.num_prompts,
        "total_num_tokens": prompt + output,
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "requests_per_second": args.num_prompts / elapsed,
        "tokens_per_second": (prompt + output) / elapsed,
        "output_tokens_per_second": output / elapsed,
        "elapsed_times": times,
        "median_elapsed_time": percentile(times, 50),
    }


def _show(result: dict[str, Any]) -> None:
    runs = len(result["elapsed_times"])
    length = result.get("acceptance_length")
    title = f"Throughput of {result['model']}, {result['num_requests']} requests"
    print_table(
        title if runs == 1 else f"{title}, the median of {runs} runs",
        [
            ("time", seconds(result["elapsed_time"])),
            ("prompt tokens", f"{result['total_input_tokens']:,}"),
            ("generated tokens", f"{result['total_output_tokens']:,}"),
            ("requests a second", f"{result['requests_per_second']:.2f}"),
            ("generated tokens a second", f"{result['output_tokens_per_second']:,.1f}"),
            ("tokens a second, prompts included", f"{result['tokens_per_second']:,.1f}"),
            *([] if length is None else [("tokens per step with draft tokens", f"{length:.2f}")]),
        ],
    )
    warn_if_busy(result["conditions"])
