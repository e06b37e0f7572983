"""What decode context parallelism and sequence-parallel norms could save, and what they cost.

Decode context parallelism (`-dcp`) splits the KV cache by tokens among ranks that would hold equal
copies. The first table counts bytes: there are copies only where `--tensor-parallel-size` exceeds
the number of key-value heads. Sequence-parallel norms split the norms of a step by tokens. The
second table has their share of a layer, measured on one rank with plain torch, and the time of the
collectives between two ranks.

Run: python -m benchmarks.parallel.context_and_norms [--rounds N]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import linear, rms_norm, silu

from core.model_spec.parallel import ParallelGroup
from core.models.layers.parallel import meet

SIZES = (2, 4, 8, 16)
"""Tensor-parallel sizes of the first table."""
ROWS = (1, 32, 512)
"""Tokens of a step in the second table."""
RANKS = 2


@dataclass(frozen=True, slots=True)
class Model:
    """A model's cache: numbers in bfloat16."""

    name: str
    layers: int
    kv_heads: int
    numbers: int
    """Numbers per token, layer and key-value head."""

    def bytes_per_rank(self, ranks: int, copies: int = 1) -> int:
        """Return the bytes of a token on each rank; `copies`: ranks that share a copy."""
        heads = -(-self.kv_heads // ranks)
        return self.layers * heads * self.numbers * 2 // copies

    def copies(self, ranks: int) -> int:
        """Return how many ranks hold each key-value head: the largest useful `-dcp`."""
        return max(1, ranks // self.kv_heads)


MODELS = (
    Model("Llama 3.1 8B", 32, 8, 2 * 128),
    Model("Llama 3.3 70B", 80, 8, 2 * 128),
    Model("Qwen3 30B-A3B", 48, 4, 2 * 128),
    Model("Gemma 3 1B", 26, 1, 2 * 256),
    Model("DeepSeek V3 (latent)", 61, 1, 576),
)


@dataclass(frozen=True, slots=True)
class Layer:
    """Sizes of a decoder layer on one of two ranks: those of Qwen3 0.6B."""

    hidden: int = 1024
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 128
    intermediate: int = 1536


def time_ms(function: Callable[[], object], rounds: int) -> float:
    """Return the median of `rounds` calls, after a warm-up."""
    function()
    times = []
    for _ in range(rounds):
        started_s = time.perf_counter()
        function()
        times.append((time.perf_counter() - started_s) * 1e3)
    return statistics.median(times)


def layer_times(rows: int, rounds: int) -> tuple[float, float]:
    """Return the milliseconds of a layer's two norms, and of its products and activation."""
    sizes = Layer()
    dtype = torch.bfloat16
    q_and_kv = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
    shapes = (
        (q_and_kv, sizes.hidden),
        (sizes.hidden, sizes.heads * sizes.head_dim),
        (2 * sizes.intermediate, sizes.hidden),
        (sizes.hidden, sizes.intermediate),
    )
    qkv, out, up, down = (torch.randn(shape, dtype=dtype) for shape in shapes)
    x = torch.randn(rows, sizes.hidden, dtype=dtype)
    weight = torch.ones(sizes.hidden, dtype=dtype)

    def norms() -> None:
        for _ in range(2):
            rms_norm(x + x, (sizes.hidden,), weight, 1e-6)

    def products() -> None:
        linear(linear(x, qkv)[:, : sizes.heads * sizes.head_dim], out)
        gate, value = linear(x, up).chunk(2, -1)
        linear(silu(gate) * value, down)

    with torch.inference_mode():
        return time_ms(norms, rounds), time_ms(products, rounds)


def collective_times(rank: int, folder: str, rounds: int, answers: object) -> None:
    """Measure the collectives of one rank; the first rank puts its times into `answers`."""
    torch.set_num_threads(1)
    group, _ = meet(folder, rank, RANKS, 1)
    found = [_collectives_of(group, rows, rounds) for rows in ROWS]
    if rank == 0:
        answers.put(found)  # type: ignore[attr-defined]


def _collectives_of(group: ParallelGroup, rows: int, rounds: int) -> tuple[float, float, float]:
    """Return the times of a layer's all-reduce, and of what the two splits add or replace."""
    sizes = Layer()
    hidden = torch.ones(rows, sizes.hidden, dtype=torch.bfloat16)
    part = hidden[: max(1, rows // RANKS)]
    query = torch.ones(rows, sizes.heads * sizes.head_dim, dtype=torch.bfloat16)
    partial_output = torch.ones(rows, RANKS * sizes.heads * (sizes.head_dim + 1))

    def context_parallel() -> None:
        group.all_gather(query)
        group.all_reduce(partial_output)

    return (
        time_ms(lambda: group.all_reduce(hidden), rounds),
        time_ms(context_parallel, rounds),
        time_ms(lambda: group.all_gather(part), rounds),
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    print("KV bytes per token on each rank; times fewer with the largest useful -dcp")
    print("| model | " + " | ".join(f"TP {size}" for size in SIZES) + " |")
    print("| --- |" + " ---: |" * len(SIZES))
    for model in MODELS:
        cells = [f"{model.bytes_per_rank(size)}, {model.copies(size)}" for size in SIZES]
        print(f"| {model.name} | {' | '.join(cells)} |")

    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=collective_times, args=(rank, folder, rounds, answers))
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        collectives = answers.get()
        for process in ranks:
            process.join()
    torch.set_num_threads(1)
    print("\nA layer on one of two ranks, ms; collectives over gloo on this machine")
    print("| tokens | norms | products | norms, % | all-reduce | -dcp adds | split norms add |")
    print("| ---: |" + " ---: |" * 6)
    for rows, (reduce_ms, context_ms, gather_ms) in zip(ROWS, collectives, strict=True):
        norms_ms, products_ms = layer_times(rows, rounds)
        share = 100 * norms_ms / (norms_ms + products_ms)
        print(
            f"| {rows} | {norms_ms:.3f} | {products_ms:.3f} | {share:.1f} | {reduce_ms:.3f} "
            f"| {context_ms:.3f} | {gather_ms:.3f} |"
        )


if __name__ == "__main__":
    main()
