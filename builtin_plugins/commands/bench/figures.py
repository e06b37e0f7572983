"""Metrics of a benchmark run, with vLLM's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from builtin_plugins.commands.bench.openai_api import Outcome, Run
from builtin_plugins.commands.bench.report import deviation, mean, percentile

METRICS: Final[Mapping[str, str]] = {
    "ttft": "time to first token",
    "tpot": "time per output token after the first",
    "itl": "time between pieces",
    "e2el": "whole request",
}


def measurements(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Return the milliseconds of each metric: one value per request, for `itl` one per gap."""
    return {
        "ttft": [1e3 * outcome.ttft_s for outcome in outcomes],
        "tpot": [1e3 * outcome.tpot_s for outcome in outcomes if outcome.tpot_s is not None],
        "itl": [1e3 * gap for outcome in outcomes for gap in outcome.gaps_s],
        "e2el": [1e3 * outcome.e2e_s for outcome in outcomes],
    }


def figures(
    run: Run, chosen: Sequence[str], percents: Sequence[float], goals: Mapping[str, float]
) -> dict[str, Any]:
    """Return all metrics of a run; failed requests are only counted."""
    good = [outcome for outcome in run.outcomes if not outcome.error]
    values = measurements(good)
    duration = run.duration_s
    prompt_tokens = sum(outcome.prompt_tokens for outcome in good)
    output_tokens = sum(outcome.output_tokens for outcome in good)
    found: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(run.outcomes) - len(good),
        "total_input_tokens": prompt_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": len(good) / duration,
        "request_goodput": sum(_reaches(outcome, goals) for outcome in good) / duration
        if goals
        else None,
        "output_throughput": output_tokens / duration,
        "total_token_throughput": (prompt_tokens + output_tokens) / duration,
        "max_output_tokens_per_s": _peak_rate(good),
        "max_concurrent_requests": _peak_open(good),
        "client_cpu_share": run.client_cpu_s / duration,
    }
    for name in chosen:
        measured = values[name]
        found[f"mean_{name}_ms"] = mean(measured)
        found[f"median_{name}_ms"] = percentile(measured, 50)
        found[f"std_{name}_ms"] = deviation(measured)
        found.update(
            {f"p{percent:g}_{name}_ms": percentile(measured, percent) for percent in percents}
        )
    return found


def details(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the raw data of every request; times in seconds."""
    return {
        "input_lens": [outcome.prompt_tokens for outcome in outcomes],
        "output_lens": [outcome.output_tokens for outcome in outcomes],
        "start_times": [outcome.start_s for outcome in outcomes],
        "ttfts": [outcome.ttft_s for outcome in outcomes],
        "itls": [outcome.gaps_s for outcome in outcomes],
        "generated_texts": [outcome.text for outcome in outcomes],
        "errors": [outcome.error for outcome in outcomes],
    }


def _reaches(outcome: Outcome, goals: Mapping[str, float]) -> bool:
    reached = {"ttft": outcome.ttft_s, "tpot": outcome.tpot_s or 0.0, "e2el": outcome.e2e_s}
    return all(1e3 * reached[name] <= goal for name, goal in goals.items())


def _peak_rate(outcomes: Sequence[Outcome]) -> int:
    """Return the maximum tokens in any whole second; a request's tokens are spread evenly over its
    chunks.
    """
    by_second: dict[int, float] = {}
    for outcome in outcomes:
        each = outcome.output_tokens / len(outcome.arrivals_s)
        for arrival in outcome.arrivals_s:
            second = int(arrival - outcome.sent_s + outcome.start_s)
            by_second[second] = by_second.get(second, 0.0) + each
    return round(max(by_second.values(), default=0.0))


def _peak_open(outcomes: Sequence[Outcome]) -> int:
    """Return the maximum number of open requests."""

    def changes() -> Iterator[tuple[float, int]]:
        for outcome in outcomes:
            yield outcome.start_s, 1
            yield outcome.start_s + outcome.e2e_s, -1

    return max(accumulate(change for _, change in sorted(changes())), default=0)
