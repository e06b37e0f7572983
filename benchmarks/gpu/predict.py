"""Predicts the rows of `roofline` for cards, before they are measured.

    python -m benchmarks.gpu.predict > benchmarks/gpu/predictions.md

The rates are shares of the datasheet; `roofline` predicts by the rates that it measures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.gpu import kernel_work, model_work
from benchmarks.gpu.cards import CARDS, Card, audited
from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.time_model import (
    NODE_S,
    NVFP4_BYTES,
    Batch,
    TimeModel,
    Work,
    batches,
    decode_work,
    float8_products,
    int4_product,
    nvfp4_products,
    prompt_work,
    warm_start,
)
from benchmarks.peers.limits import Shape, step_s

BUDGET: Final = 8192
"""Prompt tokens of a step, as in the engine's default."""
LARGE: Final = "Llama 8B"
SMALL: Final = "Qwen3 0.6B"
LARGEST_STEP: Final = "W5 1 x 2048 prompt"
"""The step that a server runs at its start, with the default --max-num-batched-tokens."""
HEAD: Final = (
    "| work | limit, ms | predicted, ms | share | measured, ms |\n"
    "| --- | ---: | ---: | ---: | ---: |"
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted time of a row of `roofline`."""

    name: str
    limit_s: float
    seconds: float
    parts: Counter[str]
    """Seconds by kernel; empty for a single kernel."""


def predictions(
    card: Card,
    rates: Ceilings,
    kernels: kernel_work.KernelSizes = kernel_work.REAL,
    models: model_work.ModelSizes = model_work.REAL,
) -> Iterator[Prediction]:
    """Yield the rows of `roofline` in its order."""
    large = TimeModel(card, rates, audited(card.target, LARGE))
    small = TimeModel(card, rates, audited(card.target, SMALL))
    yield from _kernels(card, large, rates, kernels)
    requests = model_work.mixed(models)
    tokens = sum(len(request.prompt) for request in requests)
    generated = sum(request.output for request in requests)
    name = f"W1 {len(requests)} requests, {tokens:,} in, {generated:,} out"
    yield _requests(name, small, rates, models.small, requests)
    yield from _single(small, rates, models.small, models.contexts[:1], models.answer, "0.6B")
    yield from _single(large, rates, models.large, models.contexts, models.answer, "8B")
    for count, length in models.prompts:
        prompts = [model_work.Request([0] * length, 1)] * count
        yield _requests(f"W5 {count} x {length} prompt", large, rates, models.large, prompts)
    count, length, output = models.wide
    wide = [model_work.Request([0] * length, output)] * count
    name = f"W2a {count} x ({length} + {output})"
    yield _requests(name, large, rates, models.batch, wide)


def _kernels(
    card: Card, model: TimeModel, rates: Ceilings, sizes: kernel_work.KernelSizes
) -> Iterator[Prediction]:
    own = sizes.attention
    shape = Shape(1, own.hidden, own.width, own.heads, own.kv_heads, own.head_size, own.vocab)
    for name, lengths in sizes.decodes.items():
        write = Work("_write_kv", 4.0 * len(lengths) * 2 * own.kv_heads * own.head_size)
        works = [write, decode_work(shape, sum(lengths), max(lengths), card.processors)]
        limit = sum(lengths) * shape.kv_bytes / rates.read_bytes_s
        yield Prediction(f"W4 {name}", limit, _sum(model, works), Counter())
    count = sizes.prompt
    write = Work("_write_kv", 4.0 * count * 2 * own.kv_heads * own.head_size)
    seconds = _sum(model, [write, prompt_work(shape, count**2 / 2, count)])
    flop = 2 * count**2 * own.heads * own.head_size
    yield Prediction(f"W5 attention of {count}", flop / rates.flop_s, seconds, Counter())
    for rows in sizes.rows:
        int4 = [int4_product(*each, rows) for each in sizes.products]
        float8 = [work for each in sizes.products for work in float8_products(*each, rows)]
        formats = [("W4, groups of 128", int4, 0.516, 16), ("FP8, rows", float8, 1.0, 8)]
        formats.append(("FP8, 128", float8, 1.0, 8))
        if not math.isnan(rates.float4_flop_s):
            float4 = [work for each in sizes.products for work in nvfp4_products(*each, rows)]
            formats.append(("NVFP4", float4, NVFP4_BYTES, 4))
        for name, works, size, bits in formats:
            limit = sum(
                rates.least_s(h * w * size, 2 * rows * h * w, bits=bits) for h, w in sizes.products
            )
            yield Prediction(f"W6 {name}, {rows} rows", limit, _sum(model, works), Counter())


def _sum(model: TimeModel, works: list[Work]) -> float:
    return sum(model.launch_s(work) + NODE_S for work in works)


def _requests(
    name: str,
    model: TimeModel,
    rates: Ceilings,
    shape: Shape,
    requests: list[model_work.Request],
) -> Prediction:
    parts: Counter[str] = Counter()
    prompts = [len(request.prompt) for request in requests]
    for batch in batches(prompts, [request.output for request in requests], BUDGET):
        parts.update(model.step_parts(shape, batch))
    limit = model_work.least_s(requests, shape, rates.rates)
    return Prediction(name, limit, parts.total(), parts)


def _single(
    model: TimeModel,
    rates: Ceilings,
    shape: Shape,
    contexts: tuple[int, ...],
    answer: int,
    name: str,
) -> Iterator[Prediction]:
    for context in contexts:
        middle = context + answer // 2
        parts = model.step_parts(shape, Batch(1, 1, middle, middle, 0.0))
        limit = step_s(shape, rates.rates, 16, rows=1, sampled=1, pairs=middle, positions=middle)
        yield Prediction(f"W3 {name}, a token after {context}", limit, parts.total(), parts)


def report(card: Card) -> Iterator[str]:
    """Yield the lines of a card's section."""
    rates = card.ceilings
    found = list(predictions(card, rates))
    yield f"\n## {card.name}\n"
    float4 = rates.float4_flop_s / 1e12
    yield (
        f"Read {rates.read_bytes_s / 1e12:.2f} TB/s, bfloat16 {rates.flop_s / 1e12:.0f} TFLOP/s, "
        f"float8 {rates.float8_flop_s / 1e12:.0f}"
        f"{'' if math.isnan(float4) else f', NVFP4 {float4:.0f}'}.\n"
    )
    yield HEAD
    for each in found:
        share = each.limit_s / each.seconds
        times = f"{each.limit_s * 1e3:.3f} | {each.seconds * 1e3:.3f} | {share:.2f}"
        yield f"| {each.name} | {times} | |"
    kernels = sum(map(len, audited(card.target, LARGE).values()))
    largest = next(each.seconds for each in found if each.name == LARGEST_STEP)
    start = warm_start(model_work.REAL.large.weight_bytes(), kernels, largest)
    listed = ", ".join(f"{name} {part_s:.2f}" for name, part_s in start.items())
    yield f"\nWarm start of 8B, in s: {sum(start.values()):.1f} ({listed}; aim 10); measured: -"
    yield "\nWhere the time goes, in ms:\n"
    for each in found:
        if each.parts:
            largest = sorted(each.parts.items(), key=lambda part: -part[1])[:6]
            listed = ", ".join(f"{name} {part_s * 1e3:.3g}" for name, part_s in largest)
            yield f"- {each.name}: {listed}"


def page() -> str:
    """Return the table of all cards."""
    lines = [
        "# Predicted times of `roofline`, to be compared with measured ones\n",
        "Printed by `python -m benchmarks.gpu.predict`; the model is in `time_model.py`.",
    ]
    for card in CARDS:
        lines += report(card)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
