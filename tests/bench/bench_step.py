"""Time of one engine step outside the model: schedule, then update with one token per row. No worker.

Run: `python tests/bench/bench_step.py [rows ...]`. Running decodes with 1 % arrivals a step, block size 16,
prefix cache on. Prints microseconds per step and per request, median over steps.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time

from core.kv import KVManager, plan_layout
from core.kv_spec import FullAttention, LayerKV
from core.scheduler import Scheduler, SchedulerLimits
from core.step import EngineRequest, StepPlan, StepResult
from core.types import SamplingParams

CONTEXT = 4096
PROMPT = 64


def make_scheduler(rows: int, depth: int) -> Scheduler:
    layout = plan_layout(
        [LayerKV("0", FullAttention(8, 128, "bfloat16"))],
        block_size=16,
        memory_bytes=0,
        num_blocks=rows * CONTEXT // 16 + 64,
        max_model_len=CONTEXT,
        max_num_seqs=rows,
    )
    limits = SchedulerLimits(max(8192, rows), rows, CONTEXT)
    return Scheduler(limits, KVManager(layout), depth=depth)


def answer(plan: StepPlan, token: int) -> StepResult:
    return StepResult(plan.step, [plan.rows[i] for i in plan.samples], [[token] for _ in plan.samples])


def measure(rows: int, *, depth: int = 1, steps: int = 300, arrivals: float = 0.01) -> float:
    """Return the median microseconds of schedule + update with `rows` running."""
    rng = random.Random(0)
    scheduler = make_scheduler(rows, depth)
    names = 0

    def add(num_tokens: int) -> None:
        nonlocal names
        names += 1
        prompt = [rng.randrange(1, 50_000) for _ in range(PROMPT)]
        sampling = SamplingParams(max_tokens=num_tokens)
        scheduler.add(
            EngineRequest(
                request_id=str(names),
                prompt_token_ids=prompt,
                sampling=sampling,
                seed=0,
                max_tokens=num_tokens,
                eos_token_ids=(0,),
            )
        )

    life = round(1 / arrivals)
    for i in range(rows):
        add(life + i * life // rows + 40)
    for _ in range(40):
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.update(answer(plan, 7))
    times = []
    gc.collect()
    gc.freeze()
    for _ in range(steps):
        while scheduler.num_running + scheduler.num_waiting < rows:
            add(2 * life)
        begin = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter()
        assert plan is not None
        result = answer(plan, rng.randrange(1, 50_000))
        resumed = time.perf_counter()
        scheduler.update(result)
        times.append(time.perf_counter() - resumed + planned - begin)
    return statistics.median(times) * 1e6


def main() -> None:
    for rows in [int(a) for a in sys.argv[1:]] or [1, 64, 256, 1024]:
        step_us = min(measure(rows) for _ in range(3))
        print(f"{rows:5} running: {step_us:7.1f} us a step, {step_us / rows:6.2f} us a request")


if __name__ == "__main__":
    main()
