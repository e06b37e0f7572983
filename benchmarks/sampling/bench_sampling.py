"""Time of sampling: from logits to tokens in a worker's step, on one thread.

Run: `python benchmarks/sampling/bench_sampling.py [vocabulary ...]`. Prints milliseconds per step,
minimum of several, for rows with equal parameters, including the copy of the logits.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

from builtin_plugins.runners.generate.processors import Active, Processors
from builtin_plugins.runners.generate.sampler import Sampler
from core.contracts.sampling import SamplerContext
from core.model_spec.kv import KVLayout
from core.models.ops.table import reference_ops
from core.plugin import load_plan, make_plan
from core.step import NewRow, StepPlan
from core.types import SamplingParams
from core.worker.batch import InputBatch
from core.worker.extensions import Extensions

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "greedy, 1 row": (1, {"temperature": 0}),
    "greedy, 32 rows": (32, {"temperature": 0}),
    "greedy, 256 rows": (256, {"temperature": 0}),
    "greedy, log-probabilities": (32, {"temperature": 0, "logprobs": 5}),
    "temperature, 1 row": (1, {"temperature": 0.8}),
    "temperature": (32, {"temperature": 0.8}),
    "top-k": (32, {"top_k": 50}),
    "top-p": (32, {"top_p": 0.9}),
    "top-k and top-p": (32, {"top_k": 50, "top_p": 0.9}),
    "min-p": (32, {"min_p": 0.05}),
    "repetition penalty": (32, {"temperature": 0, "repetition_penalty": 1.1}),
    "logit bias": (32, {"temperature": 0, "logit_bias": {5: 1.0, 9: -1.0}}),
}


class Logits:
    """Fake model with constant logits."""

    def __init__(self, rows: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._logits = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(0)) * 3

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._logits.clone()


def make_processors(context: SamplerContext) -> Processors:
    registry = load_plan(make_plan())
    made = [registry.load(r)(context) for r in registry.entries("logits_processors")]
    return Processors([Active(processor, lambda error, request: str(error)) for processor in made])


def measure(rows: int, vocab_size: int, params: dict[str, Any], steps: int = 30) -> float:
    """Return the minimum step time in milliseconds, including reading the result."""
    layout = KVLayout([], [], 16)
    batch = InputBatch(rows, 128, layout, "cpu")
    processors = make_processors(SamplerContext(vocab_size, rows, 128, "cpu"))
    model: Any = Logits(rows, vocab_size)
    stage = Sampler(model, batch, processors, Extensions([]), "raw_logprobs", reference_ops())
    sampling = SamplingParams(**params)
    new = [NewRow(row, str(row), [3, 4, 5], 3, sampling, row, (), []) for row in range(rows)]
    hidden = torch.zeros(rows, 1)
    names = list(range(rows))
    fastest = float("inf")
    for step in range(steps):
        plan = StepPlan(
            step, [], new if step == 0 else [], [], names, [2 + step] * rows, [1] * rows, names
        )
        inputs = batch.prepare(plan)
        batch.upload(inputs)
        for row in plan.new:
            processors.added(row)
        batch.gather(inputs)
        started = time.perf_counter()
        pending = stage.run(plan, inputs, hidden, {})
        pending.start_copy()
        pending.get()
        fastest = min(fastest, time.perf_counter() - started)
    return fastest * 1e3


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    for vocab_size in [int(given) for given in sys.argv[1:]] or [32_000, 152_000]:
        for name, (rows, params) in CASES.items():
            took = measure(rows, vocab_size, params)
            print(f"vocabulary {vocab_size:7}  {name:26} {rows:4} rows  {took:8.2f} ms")


if __name__ == "__main__":
    main()
