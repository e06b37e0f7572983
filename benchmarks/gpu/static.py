"""What compilers make of the Triton kernels in the shapes of known models, without a GPU.

    TRITON_INTERPRET=0 python -m benchmarks.gpu.static [--targets sm_90,gfx942] [--all-configs]

Prints a table per target: registers, spilled bytes, shared memory, programs at a time on a
multiprocessor, accesses to global memory by width, and the kinds of matrix instructions.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np
import torch
import triton
from core_kernels.low_rank import LowRankFactors, LowRankParts
from core_kernels.triton import chunked_scan, row_ops, sampling, sequential_scan
from core_kernels.triton.block_copy import BlockCopier, copy_blocks
from core_kernels.triton.block_scaled import BlockScaledOps
from core_kernels.triton.gated_linear import gated_linear
from core_kernels.triton.int8_mm import ScaledIntOps
from core_kernels.triton.latent_rows import latent_rows
from core_kernels.triton.low_rank import LowRankOps
from core_kernels.triton.moe import moe
from core_kernels.triton.nvfp4 import NvFp4Ops
from core_kernels.triton.quantized import WHOLE_ROW, FloatOps, GroupedOps, QuantizedOps
from core_kernels.triton.router import choose_experts
from core_kernels.triton.row_quantizer import RowQuantizer

from benchmarks.gpu.compiled import TARGETS, VECTOR_BYTES, Program, compiling
from builtin_plugins.attention_backends.triton.backend import TritonAttention
from core.model_spec.attention_params import AttentionParams, QkNormRope
from core.testing.attention_oracle import PagedSequences

Tensor = torch.Tensor
ROWS: Final = 64
"""Tokens of a step."""
MULTIPLIES_BLOCKS: Final = 100
"""Compute capability, times ten, from which matrix units multiply blocks with scales."""


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return a tensor that is not read: memory is only reserved for it."""
    return torch.empty(shape, dtype=dtype)


def dense(hidden: int, width: int, heads: int, kv_heads: int, head_size: int, vocab: int) -> None:
    """Launch what a layer with gated feed-forward and full attention launches, and sampling."""
    x = empty(ROWS, hidden)
    row_ops.rms_norm(x, empty(hidden), 1e-6)
    row_ops.add_rms_norm(x, x, empty(hidden), 1e-6)
    row_ops.gated(empty(ROWS, 2 * width), "silu")
    gated_linear(x, empty(2 * width, hidden), "silu")
    attend(AttentionParams(heads, kv_heads, head_size, head_size**-0.5))
    logits = empty(ROWS, vocab, dtype=torch.float32)
    numbers = torch.arange(ROWS)
    sampling.argmax(logits)
    sampling.sample(logits, numbers, numbers)
    sampling.truncate(logits, numbers, torch.ones(ROWS))


def attend(params: AttentionParams) -> None:
    """Launch attention of prompts and of single tokens, and the writes of the cache."""
    backend = TritonAttention()
    sequences = PagedSequences(backend, params, num_sequences=2, max_len=256, dtype=torch.bfloat16)
    inputs, query, key, value = sequences.tokens({0: 1, 1: 200})
    plan = backend.prepare(inputs)
    backend.attend(params, query, key, value, sequences.cache, plan)
    if params.value_size is None:
        positions = torch.zeros(len(query), dtype=torch.int64)
        weight = empty(params.head_size)
        rope = QkNormRope(
            weight, weight, 1e-6, 0.0, torch.zeros(256, params.head_size), interleaved=False
        )
        backend.attend_with_rope(params, rope, query, key, value, positions, sequences.cache, plan)


def attend_sparsely(params: AttentionParams, heads: int, size: int, top_k: int) -> None:
    """Launch the selection of an indexer and attention to it, for few tokens and for many."""
    backend = TritonAttention()
    sequences = PagedSequences(backend, params, num_sequences=2, max_len=256, dtype=torch.bfloat16)
    for counts in ({0: 1, 1: 1}, {0: 100, 1: 100}):
        inputs, query, key, _ = sequences.tokens(counts)
        inputs.kv_lens = [2 * top_k] * 2
        count = len(query)
        index = empty(8, inputs.block_size, size)
        selected = backend.prepare_index(inputs, top_k).select(
            empty(count, heads, size), empty(count, heads, dtype=torch.float32),
            empty(count, size), index,
        )  # fmt: skip
        plan = backend.prepare_sparse(inputs, top_k)
        backend._programs = 396
        plan.attend(params, query, key, sequences.cache, selected)


def experts(hidden: int, width: int, num_experts: int, choices: int, num_groups: int = 1) -> None:
    """Launch a layer of experts, for few pairs an expert and for many."""
    logits = empty(ROWS, num_experts, dtype=torch.float32)
    grouped = num_groups, -(-num_groups // 2), 2, 0.0
    score = "sigmoid" if num_groups > 1 else "softmax"
    choose_experts(logits, logits[0], score, choices, grouped, True, 1.0)
    gate_up = empty(num_experts, 2 * width, hidden)
    down = empty(num_experts, hidden, width)
    for rows in (ROWS, 64 * num_experts // choices):
        chosen = torch.arange(rows * choices).reshape(rows, choices) % num_experts
        moe(empty(rows, hidden), gate_up, down, empty(rows, choices), chosen)


def quantized(numbers: GroupedOps, hidden: int, width: int, num_experts: int = 0) -> None:
    """Launch the products of a weight of low-bit numbers."""
    weight = numbers.empty(width, hidden, torch.bfloat16, max(1, num_experts))
    for rows in (1, 4 * ROWS):
        numbers.linear(empty(rows, hidden), weight[0], width)
    if num_experts:
        choices = torch.arange(4 * num_experts) // 4
        numbers.grouped(empty(len(choices), hidden), weight, width, choices)


def block_scaled(numbers: BlockScaledOps, hidden: int, width: int) -> None:
    """Launch the product of a weight in MXFP4 or NVFP4, for few rows and for many.

    Only on targets that multiply blocks with scales: others do not select these kernels.
    """
    target = triton.runtime.driver.active.get_current_target()
    if target.backend != "cuda" or target.arch < MULTIPLIES_BLOCKS:
        return
    weight = numbers.empty(width, hidden, torch.bfloat16)
    for rows in (1, 4 * ROWS):
        numbers.linear(empty(rows, hidden), weight, width)


def quantized_rows(
    hidden: int, width: int, group: int, kind: torch.dtype = torch.float8_e4m3fn
) -> None:
    """Launch what writes the inputs of products of eight bits."""
    x = empty(ROWS, hidden)
    inputs = RowQuantizer(group, kind)
    inputs.rms_norm(x, empty(hidden), 1e-6, 0.0)
    inputs.add_rms_norm(x, x, empty(hidden), 1e-6, 0.0)
    inputs.gated(empty(ROWS, 2 * width), "silu")
    inputs.round(x)


def mamba2(channels: int, heads: int, head_size: int, state: int, taps: int) -> None:
    """Launch a layer of Mamba 2, for single tokens and for prompts."""
    states = empty(1, heads, head_size, state, dtype=torch.float32)
    for length in (1, 256):
        part = empty(1, length, channels)
        sequential_scan.causal_conv(part, empty(1, taps - 1, channels), empty(taps, channels), None)
        scan = sequential_scan.ssd_scan if length == 1 else chunked_scan.ssd_scan
        x = empty(1, length, heads, head_size)
        key = empty(1, length, 1, state)
        step = empty(1, length, heads, dtype=torch.float32)
        scan(x, step, empty(heads, dtype=torch.float32), key, key, states)


def gated_delta(key_heads: int, heads: int, head_size: int) -> None:
    """Launch a layer of gated delta rule, for single tokens and for prompts."""
    states = empty(1, heads, head_size, head_size, dtype=torch.float32)
    for length in (1, 256):
        scan = sequential_scan.delta_scan if length == 1 else chunked_scan.delta_scan
        key = empty(1, length, key_heads, head_size)
        share = empty(1, length, heads, dtype=torch.float32)
        scan(key, key, empty(1, length, heads, head_size), share, share, states, 1.0)


def adapters(hidden: int, width: int, rank: int) -> None:
    """Launch a layer with adapters, for few rows and for many."""
    ops = LowRankOps("cpu", torch.bfloat16, rank)
    table = ops.table(4, 1)
    factors = LowRankFactors(0, empty(rank, hidden), empty(width, rank))
    table.put(0, ops.pack([LowRankParts([factors], None)])[0])
    step = ops.rows(4)
    for rows in (3, 4 * ROWS):
        step.set_adapters(np.zeros(rows, dtype=np.int32))
        ops.add(empty(rows, width), empty(rows, hidden), step.select(None), table)


def copies(kv_heads: int, head_size: int) -> None:
    """Launch copies of KV blocks, within a device and packed for other places."""
    block = 2 * 16 * kv_heads * head_size
    pairs = torch.tensor([[0, 1]])
    copy_blocks(empty(3, block), empty(3, block), pairs)
    copier = BlockCopier([torch.empty((3, 2 * block), dtype=torch.uint8)])
    copier.scatter(torch.tensor([2]), copier.gather(torch.tensor([0])))


def llama_8b() -> None:
    """meta-llama/Llama-3.1-8B, with weights of low-bit numbers, adapters and copies of blocks."""
    dense(4096, 14336, 32, 8, 128, 128256)
    quantized(QuantizedOps(4, 128), 4096, 14336)
    quantized(FloatOps(torch.float8_e4m3fn, 128), 4096, 14336)
    quantized_rows(4096, 14336, WHOLE_ROW)
    quantized_rows(4096, 14336, WHOLE_ROW, torch.int8)
    quantized(ScaledIntOps(), 4096, 14336)
    block_scaled(BlockScaledOps(), 4096, 14336)
    block_scaled(NvFp4Ops(), 4096, 14336)
    adapters(4096, 14336, 16)
    copies(8, 128)


def deepseek_v32() -> None:
    """deepseek-ai/DeepSeek-V3.2: an indexer, and attention to what it selects."""
    attend_sparsely(AttentionParams(128, 1, 576, 0.1, value_size=512), 64, 128, 2048)


def deepseek_v3() -> None:
    """deepseek-ai/DeepSeek-V3: latent attention, experts in float8 by groups of 128."""
    attend(AttentionParams(128, 1, 576, 0.1, value_size=512))
    down = empty(ROWS, 2112)
    latent_rows(
        empty(ROWS, 128, 576), down[:, :512], down[:, 512:576], empty(ROWS, 128, 192)[..., 128:],
        empty(512), 1e-6, 0.0, empty(256, 64, dtype=torch.float32), torch.arange(ROWS), True,
    )  # fmt: skip
    experts(7168, 2048, 256, 8, num_groups=8)
    quantized(FloatOps(torch.float8_e4m3fn, 128), 7168, 4096, 256)
    quantized_rows(7168, 18432, 128)


def qwen3_next() -> None:
    """Qwen/Qwen3-Next-80B-A3B: gated delta rule, attention of 256 elements a head, experts."""
    gated_delta(16, 32, 128)
    dense(2048, 5120, 16, 2, 256, 151936)
    experts(2048, 512, 512, 10)


def qwen3_30b_a3b() -> None:
    """Qwen/Qwen3-30B-A3B."""
    dense(2048, 6144, 32, 4, 128, 151936)
    experts(2048, 768, 128, 8)


MODELS: Final[dict[str, Callable[[], None]]] = {
    "Llama 8B": llama_8b,
    "Qwen3 0.6B": partial(dense, 1024, 3072, 16, 8, 128, 151936),
    "Qwen3 30B-A3B": qwen3_30b_a3b,
    "DeepSeek V3": deepseek_v3,
    "DeepSeek V3.2": deepseek_v32,
    "Mamba 2": partial(mamba2, 5376, 80, 64, 128, 4),
    "Qwen3-Next": qwen3_next,
}


def audit(
    target: str, models: Iterable[str] = MODELS, *, all_configs: bool = False
) -> list[tuple[str, Program]]:
    """Return (model, program) of each launch of the models on a target."""
    found: list[tuple[str, Program]] = []
    for model in models:
        with compiling(target, all_configs=all_configs) as programs:
            MODELS[model]()
        found += ((model, program) for program in programs)
    return found


def widths(counts: Counter[int]) -> str:
    """Return accesses by width, as `16x4 2x1`."""
    return " ".join(f"{size}x{count}" for size, count in sorted(counts.items(), reverse=True))


def cells(program: Program) -> tuple[str, ...]:
    """Return a program's cells of the table."""
    return (
        str(program.num_warps),
        str(program.registers),
        str(program.spilled_bytes),
        str(program.shared_bytes),
        str(program.resident),
        widths(program.loads),
        widths(program.copies),
        widths(program.stores),
        " ".join(program.products),
    )


def table(found: Iterable[tuple[str, Program]]) -> Iterator[str]:
    """Yield the rows of a table; models with the same program share one."""
    models: dict[tuple[str, ...], dict[str, None]] = {}
    for model, program in sorted(found, key=lambda each: each[1].kernel):
        models.setdefault((program.kernel, *cells(program)), {})[model] = None
    for (kernel, *values), names in models.items():
        yield f"| {' | '.join((kernel, ', '.join(names), *values))} |"


HEAD: Final = (
    "| kernel | model | warps | registers | spilled | shared | resident "
    "| loads | async copies | stores | products |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--all-configs", action="store_true")
    given = parser.parse_args()
    for target in given.targets.split(","):
        found = audit(target, given.models.split(","), all_configs=given.all_configs)
        spilling = sum(program.spilled_bytes > 0 for _, program in found)
        narrow = sum(program.narrow_reads > 0 for _, program in found)
        print(f"\n## {target}\n\n{len(found)} programs, {spilling} spill registers, {narrow} read")
        print(f"some elements one by one. Accesses: bytes x count, {VECTOR_BYTES} bytes at best.\n")
        print(HEAD)
        print("\n".join(table(found)))


if __name__ == "__main__":
    main()
