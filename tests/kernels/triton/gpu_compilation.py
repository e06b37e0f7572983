"""Compiles kernels for a GPU that need not be there: each launch is translated as for compute
capability 9.0, and not made.

The interpreter takes much that the compiler does not. Run as a script, without `TRITON_INTERPRET`.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from core_kernels.low_rank import LowRankFactors, LowRankParts
from core_kernels.triton import chunked_scan, sequential_scan
from core_kernels.triton.block_copy import BlockCopier, copy_blocks
from core_kernels.triton.block_scaled import BlockScaledOps
from core_kernels.triton.int8_mm import ScaledIntOps
from core_kernels.triton.low_rank import LowRankOps
from core_kernels.triton.nvfp4 import NvFp4Ops
from core_kernels.triton.quantized import WHOLE_ROW, FloatOps, GroupedOps, QuantizedOps
from core_kernels.triton.quantized_rows import round_rows

from benchmarks.gpu.compiled import compiling
from benchmarks.gpu.static import attend_sparsely
from builtin_plugins.attention_backends.triton.backend import TritonAttention
from builtin_plugins.op_impls.triton import ops, plugin
from core.model_spec.attention_params import AttentionParams, QkNormRope
from core.testing.attention_oracle import PagedSequences
from core.testing.conformance.op_impls import _examples as examples

MAX_SHARED_BYTES = 227 << 10
"""Bytes of shared memory that a program may have on such a device."""
BY_HEAD = torch.linspace(-1.0, 1.0, 32)
LAYERS = (
    AttentionParams(32, 8, 128, 0.1),
    AttentionParams(32, 8, 64, 0.1, window=7, softcap=3.0, alibi=BY_HEAD, sinks=BY_HEAD),
    AttentionParams(16, 1, 576, 0.1, value_size=512),
)


NUMBERS: tuple[GroupedOps, ...] = (
    QuantizedOps(8, WHOLE_ROW, torch.float16),
    QuantizedOps(4, 128, torch.bfloat16, has_zeros=True),
    QuantizedOps(4, 24, torch.float16, has_zeros=True),
    QuantizedOps(4, 32, torch.float16, is_float=True),
    FloatOps(torch.float8_e4m3fn, 128),
    FloatOps(torch.float8_e5m2, WHOLE_ROW),
)


def main() -> None:
    with compiling("sm_90", all_configs=True) as programs:
        launch_all()
    shared: dict[str, int] = {}
    for program in programs:
        shared[program.kernel] = max(shared.get(program.kernel, 0), program.shared_bytes)
    for name, num_bytes in shared.items():
        print(name, num_bytes)
    too_large = [name for name, num_bytes in shared.items() if num_bytes > MAX_SHARED_BYTES]
    sys.exit(" ".join(too_large) or 0)


def launch_all() -> None:
    """Call what launches kernels, with tensors on the CPU that are not read."""

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(torch.bfloat16)

    backend = TritonAttention()
    for params in LAYERS:
        sequences = PagedSequences(backend, params, num_sequences=2, dtype=torch.bfloat16)
        inputs, query, key, value = sequences.tokens({0: 1, 1: 20})
        backend.attend(params, query, key, value, sequences.cache, backend.prepare(inputs))
        if params.value_size is None:
            rope = QkNormRope(
                query[0, 0], key[0, 0], 1e-6, 0.0, torch.randn(9, 64), interleaved=False
            )
            positions = torch.zeros(len(query), dtype=torch.int64)
            plan = backend.prepare(inputs)
            backend.attend_with_rope(
                params, rope, query, key, value, positions, sequences.cache, plan
            )
    for op in sorted({*plugin.OPS} - {"delta_scan"}):
        for arguments in [given for given in examples(op, draw) if given[0].numel()][:4]:
            getattr(ops, op)(*arguments)
    copy_blocks(torch.zeros(3, 40), torch.zeros(3, 40), torch.tensor([[0, 1]]))
    for width in (24, 7):
        packed = BlockCopier([torch.zeros((3, width), dtype=torch.uint8)])
        packed.scatter(torch.tensor([2]), packed.gather(torch.tensor([0])))
    for numbers in NUMBERS:
        weights = numbers.empty(256, 512, torch.bfloat16, 2)
        for rows in (1, 300):
            numbers.linear(draw(rows, 512), weights[0], 256)
        numbers.grouped(draw(5, 512), weights, 256, torch.tensor([0, 0, 1, 1, 1]))
        numbers.rows(weights[0], 256, 512, torch.tensor([3]), torch.bfloat16)
    round_rows(draw(3, 5000), WHOLE_ROW)
    for more in (ScaledIntOps(), BlockScaledOps(), NvFp4Ops()):
        weight = more.empty(256, 512, torch.bfloat16)
        for rows in (1, 300):
            more.linear(draw(rows, 512), weight, 256)
    attend_sparsely(LAYERS[-1], 64, 128, 64)
    adapters = LowRankOps("cpu", torch.bfloat16, 32)
    table = adapters.table(4, 1)
    rows_of = adapters.rows(4)
    table.put(
        0,
        adapters.pack([LowRankParts([LowRankFactors(0, draw(16, 4096), draw(1024, 16))], None)])[0],
    )
    for rows in (3, 300):
        rows_of.set_adapters(np.zeros(rows, dtype=np.int32))
        adapters.add(draw(rows, 1024), draw(rows, 4096), rows_of.select(None), table)
    key = draw(1, 2, 2, 64)
    states = torch.zeros(1, 4, 64, 64)
    chunked_scan.delta_scan(key, key, draw(1, 2, 4, 64), draw(1, 2, 4), draw(1, 2, 4), states)
    wide = draw(1, 2, 1, 128)
    chunked_scan.ssd_scan(
        draw(1, 2, 4, 64), draw(1, 2, 4), draw(4), wide, wide, torch.zeros(1, 4, 64, 128)
    )
    for decay in (draw(1, 2, 4), draw(1, 2, 4, 64)):
        sequential_scan.delta_scan(key, key, draw(1, 2, 4, 64), decay, draw(1, 2, 4), states)
    share = draw(1, 2, 4)
    for scan in (chunked_scan.delta_scan, sequential_scan.delta_scan):
        scan(key, key, draw(1, 2, 4, 64), share, share, states, 0.125)


if __name__ == "__main__":
    main()
