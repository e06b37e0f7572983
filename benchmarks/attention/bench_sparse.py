"""Decode rate of an attention layer of DeepSeek V3.2, sparse and dense, by context length.

Run: `python benchmarks/attention/bench_sparse.py [float32|bfloat16 ...] [--lengths 2048 32768]
[--threads N] [--heads N]`.

A whole layer: projections of one token (hidden size 7168), its write to the cache, and attention
over 128 heads of 576, in blocks of 16 tokens at random places. The sparse layer has the indexer of
V3.2, 64 heads of 128 that select 2,048 tokens. The dense layer is the same without it, as V3 is.
Weights and cached rows are random; weights are packed in both, as the engine has them on CPUs, and
with `--plain-products` multiplied by torch. Prints milliseconds of a decode step (the fastest of
several; with one thread, its own time), and how many times the dense rate the sparse one is: of the
layer, and of attention alone, where the sparse one has the selection, too.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import torch

from builtin_plugins.attention_backends.paged.backend import make_backend
from builtin_plugins.op_impls.cpu.ops import select_tokens
from builtin_plugins.quant_methods.cpu_packed.method import make_method
from core.contracts.attention import AttentionInputs
from core.model_spec.attention import IndexerSpec, LatentAttentionSpec, NormSpec
from core.model_spec.kv import LayerKV
from core.model_spec.names import WeightNames
from core.model_spec.rope import RopeSpec
from core.models.layers.latent_attention import LatentAttention
from core.models.layers.positions import Rotary
from core.models.layers.state import prepare
from core.models.layers.weights import WeightMap
from core.testing.one_sequence import plain_context

HIDDEN = 7168
INDEXER = IndexerSpec(top_k=2048, heads=64, size=128, interleaved=False)
BLOCK = 16
RUNS = 5


def layer_spec(heads: int) -> LatentAttentionSpec:
    """Return the dense layer of V3.2's shape."""
    return LatentAttentionSpec(
        heads=heads,
        key_size=128,
        shared_size=64,
        value_size=128,
        rank=512,
        query_rank=1536,
        rope=RopeSpec(64, 10000.0, interleaved=True),
        norm=NormSpec(),
        scale=192**-0.5,
    )


class Layer:
    """An attention layer with random weights and a random cache of one sequence."""

    def __init__(
        self, spec: LatentAttentionSpec, dtype: torch.dtype, max_len: int, *, packs: bool
    ) -> None:
        self._backend = make_backend()
        context = plain_context(dtype=dtype)
        if packs:
            context = replace(context, plain=make_method())
        self._ops = replace(context.ops, select_tokens=select_tokens)
        context = replace(context, attention=self._backend, ops=self._ops)
        assert spec.rope is not None
        rotary = Rotary(spec.rope, max_len, context)
        rotary.finish()
        weights = WeightMap()
        self._layer = LatentAttention(
            spec, HIDDEN, WeightNames(), "layer", rotary, context, weights
        )
        for parameter in self._layer.parameters():
            parameter.data.normal_(0, 0.02)
        self._x = torch.randn(1, HIDDEN, dtype=dtype)
        self._query = torch.randn(1, spec.heads, spec.head_size, dtype=dtype)
        self._key = torch.randn(1, 1, spec.head_size, dtype=dtype)
        self._index = (
            torch.randn(1, INDEXER.heads, INDEXER.size, dtype=dtype),
            torch.randn(1, INDEXER.heads),
            torch.randn(1, INDEXER.size, dtype=dtype),
        )
        parts: list[Any] = [self._layer]
        if self._layer.indexer is not None:
            parts.append(self._layer.indexer)
        num_blocks = -(-max_len // BLOCK) + 1
        self._specs = [LayerKV("layer", part.kv_spec).spec for part in parts]
        for part in parts:
            shape: tuple[int, ...] = (num_blocks, BLOCK, part.kv_spec.head_size)
            if part is self._layer:
                shape = self._backend.cache_shape(part.kv_spec, num_blocks, BLOCK)
            part.cache = torch.randn(shape).to(dtype)
        self._table = torch.randperm(num_blocks - 1)[None].int() + 1

    def times(self, length: int) -> tuple[float, float]:
        """Return the milliseconds of the layer and of its attention, for the token at the end of
        `length` tokens, with its plans.
        """
        layer = min(self._step(length, whole=True) for _ in range(RUNS))
        return layer, min(self._step(length, whole=False) for _ in range(RUNS))

    def _step(self, length: int, *, whole: bool) -> float:
        position = length - 1
        slot = int(self._table[0, position // BLOCK]) * BLOCK + position % BLOCK
        table = self._table[:, : -(-length // BLOCK)]
        clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        start = clock()
        plans = [
            prepare(
                self._backend,
                self._ops,
                AttentionInputs([0, 1], [length], table, torch.tensor([slot]), BLOCK, spec),
            )
            for spec in self._specs
        ]
        if whole:
            self._layer(self._x, torch.tensor([position]), *plans)
        elif len(plans) == 1:
            value = self._key[..., : self._layer.spec.rank]
            cache: Any = self._layer.cache
            params = self._layer.params
            self._backend.attend(params, self._query, self._key, value, cache, plans[0])
        else:
            indexer: Any = self._layer.indexer
            selected = plans[1].select(*self._index, indexer.cache)
            plans[0].attend(self._layer.params, self._query, self._key, self._layer.cache, selected)
        return (clock() - start) * 1e3


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description="Decode rate of sparse and dense latents.")
    parser.add_argument("dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[2048, 4096, 8192, 16384, 32768])
    parser.add_argument("--threads", type=int, help="threads of torch and of the kernels")
    parser.add_argument("--heads", type=int, default=128, help="query heads, such as of one rank")
    parser.add_argument("--plain-products", action="store_true", help="projections by torch")
    chosen = parser.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    dense = layer_spec(chosen.heads)
    for name in chosen.dtypes:
        dtype = getattr(torch, name)
        layers = [
            Layer(spec, dtype, max(chosen.lengths), packs=not chosen.plain_products)
            for spec in (dense, replace(dense, indexer=INDEXER))
        ]
        for length in chosen.lengths:
            dense_times, sparse_times = (layer.times(length) for layer in layers)
            parts = zip(("layer", "attention"), dense_times, sparse_times, strict=True)
            found = [
                f"{part}: dense {slow:7.2f}, sparse {fast:7.2f} ms, {slow / fast:5.2f} x"
                for part, slow, fast in parts
            ]
            print(f"{name:9} {length:6} tokens  {'   '.join(found)}")


if __name__ == "__main__":
    main()
