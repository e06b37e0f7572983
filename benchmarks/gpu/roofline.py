"""Compares the engine with the peak rates of a GPU, in one table with targets.

Run: python benchmarks/gpu/roofline.py [--only W1,W4] [--seconds 380]

Measures the device's peak rates, then kernels (W4, W6, W5 attention), a small model (W1, W3;
without overlap; transformers' continuous batching), and 8B models (W3, W5, W2a), with random
weights. The share of a row is its minimum time, by the measured peak rates, over its time. The
predicted time is `predict`'s, by the same rates.
Workloads beyond the time limit are skipped by name. `--smoke` computes tiny shapes, with Triton's
interpreter on machines without a GPU, and times nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

if not __package__:  # run as a file: fix the import path
    sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.gpu import ceilings, kernel_work, model_work, predict
from benchmarks.gpu.cards import CARDS
from benchmarks.gpu.clock import Clock, DeviceClock, NoClock, Row

WeightShard = Callable[[Clock, ceilings.Ceilings, Any], Iterator[Row]]
PARTS: tuple[tuple[str, WeightShard, Any, Any], ...] = (
    ("W4", kernel_work.decoding, kernel_work.REAL, kernel_work.TOY),
    ("W5", kernel_work.prompt_attention, kernel_work.REAL, kernel_work.TOY),
    ("W6", kernel_work.products, kernel_work.REAL, kernel_work.TOY),
    ("W1 W3", model_work.small_batch, model_work.REAL, model_work.TOY),
    ("W3 W5", model_work.large_model, model_work.REAL, model_work.TOY),
    ("W2a", model_work.wide_batch, model_work.REAL, model_work.TOY),
)
"""Workloads with their functions and sizes (full, tiny), by importance."""


def run(clock: Clock, *, toys: bool, only: set[str], budget_s: float) -> None:
    """Print each row when it is complete."""
    begun = time.monotonic()
    found = ceilings.measure(clock, 1 << 16 if toys else 8 << 30, 64 if toys else 8192)
    if not toys:
        say(found)
    predicted = {} if toys else predicted_s(torch.cuda.get_device_name(), found)
    print(
        "| work | ms | limit, ms | predicted, ms | share | target | comparison |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    )
    for names, part, real, toy in PARTS:
        if only and not only & {*names.split()}:
            continue
        if time.monotonic() - begun > budget_s:
            print(f"| {names} | left out: {budget_s:.0f} s are over | | | | | |")
            continue
        for row in part(clock, found, toy if toys else real):
            print(line(row, predicted.get(row.name)), flush=True)


def predicted_s(device: str, found: ceilings.Ceilings) -> dict[str, float]:
    """Return the predicted seconds of the rows, by the measured rates; empty for other cards."""
    for card in CARDS:
        if card.name.split()[0] in device:
            return {each.name: each.seconds for each in predict.predictions(card, found)}
    return {}


def say(found: ceilings.Ceilings) -> None:
    """Print the device's peak rates."""
    reads, copies = (
        f"{rate / 1e12:.2f} TB/s" for rate in (found.read_bytes_s, found.copied_bytes_s)
    )
    wide, narrow, least = (f"{found.product_rate(bits) / 1e12:.0f} TFLOP/s" for bits in (16, 8, 4))
    print(
        f"{torch.cuda.get_device_name()}: read {reads}, copied {copies}, bfloat16 {wide}, float8 "
        f"{narrow}, NVFP4 {least}\n"
    )


def line(row: Row, predicted: float | None = None) -> str:
    """Return a table row; without a time, a row that says it was computed."""
    if math.isnan(row.seconds):
        return f"| {row.name} | computed | | | | {row.target} | |"
    share = row.limit_s / row.seconds
    expected = "" if predicted is None else f"{predicted * 1e3:.3f}"
    times = f"{row.seconds * 1e3:.3f} | {row.limit_s * 1e3:.3f} | {expected} | {share:.2f}"
    return f"| {row.name} | {times} | {row.target} | {row.comparison} |"


def main() -> int:
    """Measure, or compute tiny shapes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="compute toy shapes and time nothing")
    parser.add_argument("--only", default="", help="workloads, by commas: W1,W2a,W3,W4,W5,W6")
    parser.add_argument(
        "--seconds", type=float, default=380.0, help="begin no workload after so many (default 380)"
    )
    given = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    if not (has_gpu or given.smoke):
        print(
            "there is no GPU that torch sees; --smoke computes toy shapes in Triton's interpreter"
        )
        return 0
    if not has_gpu:
        os.environ["TRITON_INTERPRET"] = "1"
    clock = NoClock("cuda" if has_gpu else "cpu") if given.smoke else DeviceClock()
    run(
        clock, toys=given.smoke, only={*filter(None, given.only.split(","))}, budget_s=given.seconds
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
