"""Puts requests to a server when they are due. Knows times and limits; knows no figures."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from builtin_plugins.commands.bench.openai_api import Api, Outcome
from builtin_plugins.commands.bench.workload import Sample


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run."""

    outcomes: list[Outcome]
    duration_s: float
    client_cpu_s: float
    """Processor time of this process while it ran."""


def arrival_times(count: int, rate: float, burstiness: float, rng: Random) -> list[float]:
    """Return when requests are due, in seconds from the start.

    Gaps are gamma-distributed with mean 1/rate; a burstiness of 1 makes them a Poisson process,
    less makes them cluster. An infinite rate sends all at once.
    """
    if math.isinf(rate):
        return [0.0] * count
    times = []
    at = 0.0
    for _ in range(count):
        times.append(at)
        at += rng.gammavariate(burstiness, 1 / (rate * burstiness))
    return times


async def run_load(
    api: Api,
    samples: Sequence[Sample],
    due_s: Sequence[float],
    *,
    max_concurrency: int | None,
    keep_text: bool,
    done: Callable[[], None],
) -> Run:
    """Send every request when it is due, or as soon after as `max_concurrency` allows; wait for all
    answers.
    """
    seats = (
        contextlib.nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    )
    cpu_s = time.process_time()
    began_s = time.perf_counter()

    async def one(sample: Sample, due: float) -> Outcome:
        await asyncio.sleep(began_s + due - time.perf_counter())
        async with seats:
            outcome = await api.ask(sample, began_s, keep_text=keep_text)
        done()
        return outcome

    outcomes = await asyncio.gather(
        *(one(sample, due) for sample, due in zip(samples, due_s, strict=True))
    )
    return Run(list(outcomes), time.perf_counter() - began_s, time.process_time() - cpu_s)
