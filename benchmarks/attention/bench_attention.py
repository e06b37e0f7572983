"""Time of paged attention in one layer, for every CPU backend and a contiguous reference.

Run: `python benchmarks/attention/bench_attention.py [float32|bfloat16 ...] [--only TEXT]
[--isa avx2|avx512|...]`.

16 query heads over 8 key-value heads of size 128, or 16 over latents of 576; random blocks of 16
tokens; one thread. Prints milliseconds of thread CPU time for the layer, for preparing the step,
and for one `scaled_dot_product_attention` without a cache. Each run reads different memory, so that
keys are not in the processor's cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from core_kernels.library import load_library
from torch.nn.functional import scaled_dot_product_attention

from core.contracts.attention import AttentionInputs
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import FullAttention, LatentKeys
from core.plugin import load_plan, make_plan

HEADS = AttentionParams(heads=16, kv_heads=8, head_size=128, scale=128**-0.5)
LATENTS = AttentionParams(heads=16, kv_heads=1, head_size=576, scale=192**-0.5, value_size=512)
BLOCK = 16
RUNS = 12
COLD_BYTES = 1 << 27
"""Bytes read between two reads of the same memory."""


@dataclass(frozen=True)
class Case:
    """A step: per sequence its length and its number of computed tokens."""

    sequences: list[tuple[int, int]]
    params: AttentionParams = HEADS
    shared: int = 0
    """Number of leading positions in blocks shared with the first sequence."""


CASES: dict[str, Case] = {
    "decode 1 x 128": Case([(128, 1)]),
    "decode 1 x 1024": Case([(1024, 1)]),
    "decode 8 x 128": Case([(128, 1)] * 8),
    "decode 8 x 1024": Case([(1024, 1)] * 8),
    "decode 32 x 128": Case([(128, 1)] * 32),
    "decode 32 x 1024": Case([(1024, 1)] * 32),
    "decode 32 x 100..1340": Case([(100 + 40 * i, 1) for i in range(32)]),
    "decode 32 x (512 shared + 80)": Case([(592, 1)] * 32, shared=512),
    "decode 32 x (4096 shared + 80)": Case([(4176, 1)] * 32, shared=4096),
    "prompt of 1024": Case([(1024, 1024)]),
    "512 after 1536": Case([(2048, 512)]),
    "latent, decode 1 x 1024": Case([(1024, 1)], LATENTS),
    "latent, decode 8 x 1024": Case([(1024, 1)] * 8, LATENTS),
    "latent, 16 x (512 shared + 80)": Case([(592, 1)] * 16, LATENTS, shared=512),
    "latent, prompt of 512": Case([(512, 512)], LATENTS),
}


def fastest(work: Callable[[int], object]) -> float:
    """Return the minimum time in milliseconds over several runs."""
    best = float("inf")
    for run in range(RUNS):
        started = time.thread_time()
        work(run)
        best = min(best, time.thread_time() - started)
    return best * 1e3


def copies(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return copies of a tensor, one per run."""
    return [tensor.clone() for _ in range(max(1, min(RUNS, COLD_BYTES // tensor.nbytes)))]


def make_step(case: Case, dtype: torch.dtype) -> tuple[AttentionInputs, int, list[torch.Tensor]]:
    """Return a step's inputs, number of cache blocks, query, key and value."""
    params = case.params
    sequences = case.sequences
    max_blocks = max(-(-length // BLOCK) for length, _ in sequences)
    blocks = (
        torch.randperm(max_blocks * len(sequences), generator=torch.Generator().manual_seed(0)) + 1
    )
    table = blocks.view(len(sequences), max_blocks)
    table[:, : case.shared // BLOCK] = table[0, : case.shared // BLOCK]
    slots = []
    query_starts = [0]
    for row, (length, count) in zip(table, sequences, strict=True):
        positions = torch.arange(length - count, length)
        slots.append(row[positions // BLOCK] * BLOCK + positions % BLOCK)
        query_starts.append(query_starts[-1] + count)
    kind = FullAttention if params.value_size is None else LatentKeys
    spec = kind(params.kv_heads, params.head_size, str(dtype).removeprefix("torch."))
    lengths = [length for length, _ in sequences]
    inputs = AttentionInputs(query_starts, lengths, table.int(), torch.cat(slots), BLOCK, spec)
    heads = (params.heads, params.kv_heads, params.kv_heads)
    query, key, value = (
        torch.randn(query_starts[-1], h, params.head_size).to(dtype) for h in heads
    )
    return (
        inputs,
        len(blocks) + 1,
        [query, key, value if params.value_size is None else key[..., : params.value_size]],
    )


def contiguous(case: Case, dtype: torch.dtype) -> float:
    """Return the time of one call over all padded sequences without a cache."""
    params = case.params
    sequences = case.sequences
    longest = max(length for length, _ in sequences)
    count = sequences[0][1]
    per_kv = params.heads // params.kv_heads
    decode = count == 1
    shape = (
        (len(sequences), params.kv_heads, per_kv) if decode else (params.kv_heads, per_kv, count)
    )
    query = torch.randn(*shape, params.head_size).to(dtype)
    every = copies(
        torch.randn(*shape[:2] if decode else shape[:1], longest, params.head_size).to(dtype)
    )
    every = every if decode else [keys[:, None].expand(-1, per_kv, -1, -1) for keys in every]
    mask = None if decode else torch.ones(count, longest, dtype=torch.bool).tril(longest - count)
    causal = count == longest

    def call(run: int) -> torch.Tensor:
        keys = every[run % len(every)]
        masked = None if causal else mask
        return scaled_dot_product_attention(
            query, keys, keys, masked, is_causal=causal, scale=params.scale
        )

    return fastest(call)


def measure(backend: Any, case: Case, dtype: torch.dtype) -> tuple[float, float]:
    """Return the time of one layer, and of preparing the step."""
    inputs, num_blocks, tensors = make_step(case, dtype)
    every = copies(torch.zeros(backend.cache_shape(inputs.spec, num_blocks, BLOCK), dtype=dtype))
    plan = backend.prepare(inputs)
    layer = fastest(
        lambda run: backend.attend(case.params, *tensors, every[run % len(every)], plan)
    )
    both = fastest(
        lambda run: backend.attend(
            case.params, *tensors, every[run % len(every)], backend.prepare(inputs)
        )
    )
    return layer, max(0.0, both - layer)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description="Time of one layer's paged attention.")
    parser.add_argument("dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--only", default="", help="only cases with this text in their name")
    parser.add_argument("--isa", help="instruction set of the kernels instead of the best one")
    chosen = parser.parse_args()
    library = load_library()
    if chosen.isa and not (library and library.core_kernels_use(chosen.isa.encode())):
        parser.error(f"this machine has no {chosen.isa}")
    torch.set_num_threads(1)
    registry = load_plan(make_plan())
    facts: dict[str, Any] = {"device": "cpu", "head_size": [128], "isa": ()}
    facts |= dict.fromkeys(("window", "chunk", "softcap", "latent", "distance_bias"), False)
    for name in chosen.dtypes:
        ranked = registry.rank("attention_backends", {**facts, "dtype": name})
        backends = {
            c.registered.entry.name: registry.load(c.registered)() for c in ranked if not c.reason
        }
        for label, case in CASES.items():
            if chosen.only not in label:
                continue
            found = [f"contiguous {contiguous(case, getattr(torch, name)):8.3f}"]
            for backend_name, backend in backends.items():
                layer, planning = measure(backend, case, getattr(torch, name))
                found.append(f"{backend_name} {layer:8.3f} + {planning:.3f}")
            print(f"{name:9} {label:30} {'   '.join(found)} ms")


if __name__ == "__main__":
    main()
