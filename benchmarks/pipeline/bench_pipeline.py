"""Throughput of pipeline stages that overlap, compared with stages in turns.

The stages are processes with a fake device that sleeps, so that two cores are enough for several
stages. With overlap, every stage takes 5 ms for a step. Without it, a step of rows that decode has
more rows, and takes longer where products bound it, but not where reading the weights does. There,
overlap helps only with more rows in total.

Run: python benchmarks/pipeline/bench_pipeline.py [--stages N] [--rounds N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core import LLM, SamplingParams
from core.testing.checkpoints import make_checkpoint

DEVICE = str(Path(__file__).with_name("fake_device.py"))
WITHOUT = ("no:structured_outputs",)
"""Its process is still starting during the first seconds, on a core that the stages need."""
STAGE_MS = 5.0
ROWS = 8
"""Decode rows of a step."""


@dataclass(frozen=True)
class Workload:
    """Requests, and how long a stage takes for a step of them."""

    name: str
    rows_in_turns: int
    """Number of requests in turns; 0: `ROWS` per stage."""
    rows_overlapped: int
    """Number of requests with overlap; 0: `ROWS` per stage."""
    prompt_len: int
    max_tokens: int
    times: dict[str, float]


WORKLOADS = (
    Workload("prompts in chunks", ROWS, ROWS, 400, 1, {"stage_ms": STAGE_MS}),
    Workload("decode, products", 0, 0, 4, 64, {"token_ms": STAGE_MS / ROWS}),
    Workload("decode, equal rows a step", ROWS, 0, 4, 64, {"stage_ms": STAGE_MS}),
    Workload("decode, equal rows in total", ROWS, ROWS, 4, 64, {"stage_ms": STAGE_MS}),
)


def tokens_per_s(folder: Path, work: Workload, stages: int, rows: int, **settings: Any) -> float:
    """Return the computed tokens per second of one run, after a warm-up."""
    prompts = [[(7 * i + 3 * j) % 200 + 10 for j in range(work.prompt_len)] for i in range(rows)]
    sampling = SamplingParams(temperature=0, max_tokens=work.max_tokens, ignore_eos=True)
    with LLM(
        str(folder),
        pipeline_parallel_size=stages,
        plugins=[DEVICE, *WITHOUT],
        device="fake",
        dtype="float32",
        max_model_len=512,
        max_num_batched_tokens=64,
        max_num_seqs=rows,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 25,
        num_threads=1,
        log_level="error",
        **work.times,
        **settings,
    ) as llm:
        llm.generate(prompts[:1], SamplingParams(max_tokens=2), use_tqdm=False)
        started_s = time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - started_s
    return rows * (work.prompt_len + work.max_tokens - 1) / seconds


def main() -> None:
    """Measure in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    stages = arguments.stages
    print("| workload | in turns, tokens/s | overlap | overlap, async | times as fast |")
    print("| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as name:
        folder = make_checkpoint("LlamaForCausalLM", Path(name) / "model", seed=1)
        for work in WORKLOADS:
            rows_in_turns = work.rows_in_turns or stages * ROWS
            rows = work.rows_overlapped or stages * ROWS
            found: list[tuple[float, float, float]] = []
            for _ in range(arguments.rounds):
                serial = {"distributed_executor_backend": "serial"}
                found.append(
                    (
                        tokens_per_s(folder, work, stages, rows_in_turns, **serial),
                        tokens_per_s(folder, work, stages, rows, async_scheduling=False),
                        tokens_per_s(folder, work, stages, rows, async_scheduling=True),
                    )
                )
            serial_rate, sync_rate, async_rate = map(statistics.median, zip(*found, strict=True))
            print(
                f"| {work.name} | {serial_rate:.0f} | {sync_rate:.0f} | {async_rate:.0f} "
                f"| {sync_rate / serial_rate:.2f}, {async_rate / serial_rate:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
