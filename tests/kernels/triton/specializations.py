"""Counts how often kernels are compiled for steps of other lengths, for a GPU that need not be
there.

Triton makes another program for numbers that are 1 or divide by 16, of those arguments that it may
specialise. Run as a script, without `TRITON_INTERPRET`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from core_kernels.triton import chunked_scan, sequential_scan
from triton.runtime.jit import JITFunction

from benchmarks.gpu.compiled import TARGETS, NoDevice
from builtin_plugins.attention_backends.triton.backend import TritonAttention
from builtin_plugins.op_impls.triton import ops
from core.model_spec.attention_params import QkNormRope
from core.testing.attention_oracle import PagedSequences
from tests.kernels.triton.gpu_compilation import LAYERS

LENGTHS = (1, 2, 16, 17, 32, 40)


def main() -> None:
    triton.runtime.driver.set_active(NoDevice(TARGETS["sm_90"]))
    run = JITFunction.run
    found = {}

    def only_compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = run(self, *args, **{**kwargs, "warmup": True})
        found.setdefault(self.__name__, set()).add(kernel.hash)
        return kernel

    JITFunction.run = only_compiled
    for first, second in zip(LENGTHS, reversed(LENGTHS), strict=True):
        attend(first, second)
    for length in LENGTHS:
        pass_rows(length)
    for name, variants in found.items():
        print(name, len(variants))


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(torch.bfloat16)


def attend(first: int, second: int) -> None:
    """Two sequences with so many tokens, in layers of one kind."""
    backend = TritonAttention()
    params = LAYERS[0]
    sequences = PagedSequences(backend, params, num_sequences=2, dtype=torch.bfloat16)
    inputs, query, key, value = sequences.tokens({0: first, 1: second})
    plan = backend.prepare(inputs)
    backend.attend(params, query, key, value, sequences.cache, plan)
    rope = QkNormRope(query[0, 0], key[0, 0], 1e-6, 0.0, torch.randn(80, 128), interleaved=False)
    positions = torch.zeros(len(query), dtype=torch.int64)
    backend.attend_with_rope(params, rope, query, key, value, positions, sequences.cache, plan)


def pass_rows(length: int) -> None:
    """So many rows, or tokens of two sequences."""
    x = draw(length, 4096)
    weight = draw(4096)
    ops.rms_norm(x, weight, 1e-6)
    ops.add_rms_norm(x, x, weight, 1e-6)
    ops.silu_and_mul(x)
    ops.best(torch.randn(length, 4096))
    ops.draw(torch.randn(length, 4096), torch.arange(length), torch.arange(length))
    part = draw(2, length, 64)
    states = torch.zeros(2, 64, 16)
    write = draw(2, length, 16)
    sequential_scan.causal_conv(part, draw(2, 3, 64), draw(4, 64), None)
    sequential_scan.selective_scan(part, part.float(), torch.zeros(64, 16), write, write, states)
    key = draw(2, length, 2, 64)
    heads = torch.zeros(2, 4, 64, 64)
    value = draw(2, length, 4, 64)
    shares = draw(2, length, 4)
    sequential_scan.delta_scan(key, key, value, shares, shares, heads)
    sequential_scan.ssd_scan(value, shares, draw(4), key, key, heads)
    chunked_scan.delta_scan(key, key, value, shares, shares, heads)
    chunked_scan.ssd_scan(value, shares, draw(4), key, key, heads)


if __name__ == "__main__":
    main()
