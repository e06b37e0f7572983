"""`engine bench step`: engine overhead per step, without a model and a worker.

A step covers scheduling, KV blocks and prefix hashes, a no-op executor, token updates and finished
requests. It is measured with constant decode rows (median step divided by requests), and with a
share of the requests replaced in each step (total time divided by tokens; arrivals count for the
following step). Decode steps are repeated with an extension that reads every plan, with one that
requests no draft tokens, and with draft tokens of which half are accepted. Output assembly without
text is the difference of two decode steps. So is the worker: its host time for greedy and for mixed
sampling parameters, with a no-op model, attention and sampling (`noop_model.py`).
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.commands.bench.noop_executor import VOCAB, Drafter, Watcher
from builtin_plugins.commands.bench.plot import plot_lines
from builtin_plugins.commands.bench.report import (
    add_output,
    check_counts,
    check_output,
    conditions,
    mean,
    percentile,
    print_columns,
    warn_if_busy,
    write_json,
)
from core.api import ConfigError, EngineConfig, RequestOutputKind, SamplingParams
from core.api.execution import EngineRequest

if TYPE_CHECKING:
    import argparse

    from core import LLM
    from core.api import CommandContext

BUDGET_TOKENS: Final = 8192
SPARE_BLOCKS: Final = 64
END_ID: Final = VOCAB - 1
"""An end-of-sequence id that is checked for every token but never sampled."""

EXTENSIONS: Final[dict[str, tuple[Callable[[], Any], int]]] = {
    "watched_us": (Watcher, 1),
    "no_drafts_us": (lambda: Drafter(0), 1),
    "drafts_us": (lambda: Drafter(4), 3),
}
"""Extension and tokens per request and step of each additional measurement."""
NOOP_EXECUTOR: Final = "+builtin_plugins.commands.bench.noop_executor"

Add = Callable[[str, list[int], int], None]
"""Queues a request: name, prompt, tokens to generate."""


@dataclass(frozen=True, slots=True)
class Load:
    """The measured load."""

    rows: int
    arrivals: float
    """Share of the running requests that is replaced per step."""
    prompt_len: int
    steps: int
    warmup: int
    pace: int = 1
    """Tokens per request and step."""

    @property
    def life(self) -> int:
        """Tokens that a request generates."""
        return (
            round(1 / self.arrivals)
            if self.arrivals
            else self.pace * (self.warmup + self.steps + 1)
        )

    def first_life(self, index: int) -> int:
        """Return the output length of an initial request; with arrivals the ends are spread
        evenly.
        """
        return self.warmup + 1 + index * self.life // self.rows if self.arrivals else self.life

    @property
    def context(self) -> int:
        """Tokens of the longest request."""
        return self.prompt_len + 2 * self.life + self.warmup + 1


class Step:
    """Step benchmark; needs no model."""

    help = "Measure the engine's overhead per step, without a model."
    takes_engine_options = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add load and repetition flags."""
        running = [1, 64, 256, 1024]
        default_text = " ".join(map(str, running))
        parser.add_argument(
            "--running",
            type=int,
            nargs="+",
            default=running,
            metavar="N",
            help=f"requests (default: {default_text})",
        )
        parser.add_argument(
            "--arrivals",
            type=float,
            default=0.01,
            metavar="S",
            help="share replaced in each step (default: 0.01)",
        )
        for name, default, text in (
            ("prompt-len", 64, "tokens of each prompt"),
            ("steps", 300, "measured steps of a round"),
            ("warmup-steps", 40, "warmup steps"),
            ("rounds", 5, "interleaved rounds; the median is reported"),
        ):
            text = f"{text} (default: {default})"
            parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)
        add_output(parser)

    def run(self, context: CommandContext) -> int:
        """Measure and report."""
        args = context.args
        check_counts(args, prompt_len=1, steps=1, warmup_steps=1, rounds=1)
        if min(args.running) < 1:
            raise ConfigError(f"--running {min(args.running)} is too small; use at least 1.")
        if not 0 <= args.arrivals <= 0.5:
            raise ConfigError(
                f"--arrivals {args.arrivals:g} is out of range; use 0 to 0.5 (half of all, each "
                "step)."
            )
        check_output(args)
        context = _with_noop_executor(context)
        where = conditions()
        seed = context.config.model.seed
        rounds: dict[int, list[dict[str, float]]] = {rows: [] for rows in args.running}
        for round_index in range(args.rounds):
            for rows in args.running:
                steady = Load(rows, 0.0, args.prompt_len, args.steps, args.warmup_steps)
                rounds[rows].append(
                    _measure(
                        context, steady, replace(steady, arrivals=args.arrivals), seed + round_index
                    )
                )
        sizes = [_summary(rows, found) for rows, found in rounds.items()]
        cache = context.config.cache
        result = {
            "running": sizes,
            "arrivals": args.arrivals,
            "block_size": cache.block_size,
            "prefix_caching": cache.enable_prefix_caching,
            "conditions": where,
        }
        _show(result)
        write_json(args.output_json, result)
        if args.plot is not None:
            _plot(args.plot, sizes)
        return 0


def _measure(context: CommandContext, steady: Load, changing: Load, seed: int) -> dict[str, float]:
    """Return the microseconds of one round."""
    times, _ = _measure_core(context, steady, seed)
    measured = context.registry.shared("bench.step", list)
    extended = {}
    for name, (make, pace) in EXTENSIONS.items():
        measured[:] = [make()]
        extended[name] = percentile(_measure_core(context, replace(steady, pace=pace), seed)[0], 50)
    measured.clear()
    with_arrivals, tokens = _measure_core(context, changing, seed)
    with _engine(context, steady) as llm:

        def add_to_llm(name: str, prompt: list[int], max_tokens: int) -> None:
            params = SamplingParams(
                max_tokens=max_tokens, detokenize=False, output_kind=RequestOutputKind.DELTA
            )
            llm.add_request(name, prompt, params)

        with_outputs, _ = _drive(llm.step, llm.core, add_to_llm, steady, seed)
    steps = percentile(times, 50)
    return {
        "step_us": steps,
        "p99_us": percentile(times, 99),
        "mean_us": mean(times),
        **extended,
        "token_us": sum(with_arrivals) / tokens,
        "outputs_us": percentile(with_outputs, 50) - steps,
        "greedy_us": _measure_worker(steady, seed, lambda index: SamplingParams(temperature=0))
        - steps,
        "sampled_us": _measure_worker(steady, seed, _mixed) - steps,
    }


def _mixed(index: int) -> SamplingParams:
    """Return parameters that differ by row."""
    return SamplingParams(
        temperature=0.5 + index % 64 / 64, top_k=5 + index % 40, top_p=0.5 + index % 50 / 101
    )


def _measure_worker(load: Load, seed: int, params_of: Callable[[int], SamplingParams]) -> float:
    """Return the microseconds of the median step with a no-op model."""
    from core import LLM  # lazy: torch is slow to import

    llm = LLM(
        "noop",
        plugins=["builtin_plugins.commands.bench.noop_model"],
        attention_backend="noop",
        skip_tokenizer_init=True,
        max_model_len=load.context,
        max_num_seqs=load.rows,
        max_num_batched_tokens=max(BUDGET_TOKENS, load.rows),
        num_gpu_blocks_override=2 * load.rows * -(-load.context // 16) + SPARE_BLOCKS,
        log_level="error",
    )
    try:

        def add(name: str, prompt: list[int], max_tokens: int) -> None:
            sampling = params_of(int(name)).clone(max_tokens=max_tokens)
            request = EngineRequest(
                request_id=name,
                prompt_token_ids=[token % 60 for token in prompt],
                sampling=sampling,
                seed=0,
                max_tokens=max_tokens,
                eos_token_ids=(1,),
            )
            llm.core.add([request])

        return percentile(_drive(llm.core.step, llm.core, add, load, seed)[0], 50)
    finally:
        llm.shutdown()
        gc.unfreeze()


def _measure_core(context: CommandContext, load: Load, seed: int) -> tuple[list[float], int]:
    """Return the microseconds of each step of an engine core, and the total tokens."""
    with _engine(context, load) as llm:
        core = llm.core

        def add(name: str, prompt: list[int], max_tokens: int) -> None:
            sampling = SamplingParams(max_tokens=max_tokens)
            request = EngineRequest(
                request_id=name,
                prompt_token_ids=prompt,
                sampling=sampling,
                seed=0,
                max_tokens=max_tokens,
                eos_token_ids=(END_ID,),
            )
            core.add([request])

        return _drive(core.step, core, add, load, seed)


@contextmanager
def _engine(context: CommandContext, load: Load) -> Iterator[LLM]:
    from core import LLM  # lazy: torch is slow to import

    logging.disable(logging.INFO)  # it would be logged once per measurement
    try:
        llm = LLM.from_config(_config(context.config, load), context.registry)
    finally:
        logging.disable(logging.NOTSET)
    try:
        yield llm
    finally:
        llm.shutdown()
        gc.unfreeze()


def _with_noop_executor(context: CommandContext) -> Any:
    """Return the context with the no-op executor plugin added."""
    # The lock file was checked already; it does not contain the plugin that is
    # added here.
    plugins = replace(
        context.config.plugins,
        plugins=[*context.config.plugins.plugins, NOOP_EXECUTOR],
        plugins_lock=None,
    )
    return replace(context, config=replace(context.config, plugins=plugins), loaded=None)


def _config(config: EngineConfig, load: Load) -> EngineConfig:
    """Return the configuration of the benchmark: executor, capacity, no text."""
    # Twice the running requests, for cached prefixes.
    blocks = 2 * load.rows * -(-load.context // config.cache.block_size) + SPARE_BLOCKS
    return replace(
        config,
        model=replace(
            config.model, model="scripted:", max_model_len=load.context, skip_tokenizer_init=True
        ),
        cache=replace(config.cache, num_gpu_blocks_override=blocks),
        scheduler=replace(
            config.scheduler,
            max_num_seqs=load.rows,
            max_num_batched_tokens=max(BUDGET_TOKENS, load.rows),
        ),
        parallel=replace(config.parallel, distributed_executor_backend="stub"),
    )


def _drive(
    step: Callable[[], Any], core: Any, add: Add, load: Load, seed: int
) -> tuple[list[float], int]:
    """Run steps with a constant number of requests; return the microseconds of each, and the total
    tokens.
    """
    rng = Random(seed)
    scheduler = core.scheduler
    names = iter(range(1 << 60))

    def arrive(max_tokens: int) -> Callable[[], None]:
        name = str(next(names))
        prompt = [rng.randrange(1, END_ID) for _ in range(load.prompt_len)]
        return lambda: add(name, prompt, max_tokens)

    for i in range(load.rows):
        arrive(load.first_life(i))()
    for _ in range(load.warmup):
        step()
    times = []
    tokens = 0
    gc.collect()
    gc.freeze()  # as a started server does
    for _ in range(load.steps):
        coming = [
            arrive(load.life)
            for _ in range(load.rows - scheduler.num_running - scheduler.num_waiting)
        ]
        started = time.perf_counter()
        for enter in coming:
            enter()
        outputs = step()
        times.append((time.perf_counter() - started) * 1e6)
        tokens += len(outputs)
    return times, tokens


def _summary(rows: int, rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return the medians over rounds."""
    medians = {name: percentile([found[name] for found in rounds], 50) for name in rounds[0]}
    return {
        "num_running": rows,
        **medians,
        "request_us": medians["step_us"] / rows,
        "rounds_us": [found["step_us"] for found in rounds],
    }


def _show(result: dict[str, Any]) -> None:
    print(
        f"Engine step, blocks of {result['block_size']} tokens, prefix caching "
        f"{'on' if result['prefix_caching'] else 'off'}; microseconds, medians"
    )
    changing = f"a token, {result['arrivals']:.0%} arrivals"
    heads = (
        "running",
        "a step",
        "a request",
        "p99 step",
        "mean",
        "watched",
        "no drafts",
        "drafts",
        changing,
        "outputs, more",
        "worker, greedy",
        "sampled",
    )
    worker = ("greedy_us", "sampled_us")
    names = (
        "step_us",
        "request_us",
        "p99_us",
        "mean_us",
        *EXTENSIONS,
        "token_us",
        "outputs_us",
        *worker,
    )
    print_columns(
        heads,
        (
            [str(size["num_running"]), *(f"{size[name]:.3f}" for name in names)]
            for size in result["running"]
        ),
    )
    warn_if_busy(result["conditions"])


def _plot(file: str, sizes: list[dict[str, Any]]) -> None:
    def line(name: str) -> list[float]:
        return [size[name] for size in sizes]

    panels = {
        "microseconds a step": {"median": line("step_us"), "p99": line("p99_us")},
        "microseconds a request": {
            "median step / requests": line("request_us"),
            "a token, with arrivals": line("token_us"),
        },
    }
    plot_lines(file, "Engine step", line("num_running"), panels, "running requests")
