"""Calls of every Triton kernel with tensors in one memory layout, and what they must return."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from core_kernels.low_rank import LowRankFactors, LowRankParts
from core_kernels.triton import block_scaled, nvfp4
from core_kernels.triton.attention import attend
from core_kernels.triton.attention_shapes import Layer as LayerShape
from core_kernels.triton.attention_shapes import Selected, Step
from core_kernels.triton.block_copy import BlockCopier, copy_blocks, write_kv
from core_kernels.triton.block_scaled import BlockScaledOps, decoded
from core_kernels.triton.int8_mm import ScaledIntOps
from core_kernels.triton.low_rank import LowRankOps
from core_kernels.triton.qk_norm_rope_cache import write_qk_norm_rope
from core_kernels.triton.quantized import QuantizedOps
from core_kernels.triton.quantized_rows import round_rows
from core_kernels.triton.row_quantizer import RowQuantizer
from core_kernels.triton.sparse_attention import plan_tokens, select_positions

from builtin_plugins.attention_backends.triton.backend import TritonAttention
from builtin_plugins.op_impls.triton import ops
from core.model_spec.attention_params import AttentionParams
from core.models.ops import reference
from core.testing.attention_oracle import PagedSequences
from core.testing.conformance.op_impls import _examples as examples

Tensor = torch.Tensor
Layout = Callable[[Tensor], Tensor]
Pairs = Iterator[tuple[Tensor, Tensor]]
"""Results and what they must equal."""


def aligned(tensor: Tensor) -> Tensor:
    """Return a contiguous copy at a multiple of 16 bytes."""
    return tensor.contiguous().clone()


def odd(tensor: Tensor) -> Tensor:
    """Return a contiguous copy one element after such a multiple."""
    memory = tensor.new_empty(tensor.numel() + 1)
    return memory[1:].view(tensor.shape).copy_(tensor)


def strided(tensor: Tensor) -> Tensor:
    """Return a copy with three elements between rows, and an odd address.

    They are NaN, or large integers, so that reading one changes results.
    """
    if tensor.dim() < 2:
        return odd(tensor)
    between = float("nan") if tensor.is_floating_point() else 99
    shape = (*tensor.shape[:-1], tensor.shape[-1] + 3)
    return torch.full(shape, between, dtype=tensor.dtype)[..., 1:-2].copy_(tensor)


LAYOUTS: Final[dict[str, Layout]] = {"aligned": aligned, "odd": odd, "strided": strided}


def op_results(op: str, lay: Layout, dtype: torch.dtype) -> Pairs:
    """Yield what an op returns for the examples of its conformance suite."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    for given in examples(op, draw):
        plain = [each.clone() if torch.is_tensor(each) else each for each in given]
        laid = [lay(each) if torch.is_tensor(each) else each for each in given]
        yield from zip(
            _tuple(getattr(ops, op)(*laid)), _tuple(getattr(reference, op)(*plain)), strict=True
        )


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def attention(lay: Layout, dtype: torch.dtype) -> Pairs:
    """Prompts and single tokens, of heads with and without a latent."""

    class LaidAttention(TritonAttention):
        def attend(self, params: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Any:
            return super().attend(params, lay(query), lay(key), lay(value), *rest)

    for params in (
        AttentionParams(4, 2, 16, 0.3),
        AttentionParams(3, 1, 7, 0.3, window=5),
        AttentionParams(4, 1, 24, 0.3, value_size=16),
    ):
        sequences = PagedSequences(LaidAttention(), params, num_sequences=2, dtype=dtype)
        sequences.cache = lay(sequences.cache)
        for counts in ({0: 9, 1: 1}, {0: 1, 1: 1}):
            found, truth = sequences.step(counts)
            yield found.double(), truth


def cache_writes(lay: Layout, dtype: torch.dtype) -> Pairs:
    """Keys and values in their slots, alone and with norm and RoPE."""
    heads = 2
    size = 14
    query, key, value = (torch.randn(3, heads, size).to(dtype) for _ in range(3))
    slots = torch.tensor([5, 0, 9])
    written = torch.zeros(3, 2, 4, heads, size, dtype=dtype)
    cache = lay(written)
    write_kv(lay(key), lay(value), cache, lay(slots))
    written[slots // 4, 0, slots % 4] = key
    written[slots // 4, 1, slots % 4] = value
    yield cache, written
    norm = torch.randn(size).to(dtype)
    table = torch.randn(8, 6)
    positions = torch.tensor([4, 0, 7])
    normed = [reference.rms_norm(each, norm, 1e-6) for each in (query, key)]
    turned, turned_key = reference.rotary(*normed, table, positions, False)
    laid = lay(query)
    write_qk_norm_rope(
        laid, lay(key), lay(value), (lay(norm), lay(norm)), 1e-6, 0.0, lay(table), lay(positions),
        False, cache, lay(slots),
    )  # fmt: skip
    written[slots // 4, 0, slots % 4] = turned_key
    yield laid, turned
    yield cache, written


def adapters(lay: Layout, dtype: torch.dtype) -> Pairs:
    """The delta of adapters of even and odd ranks."""
    for width, columns, rank in ((32, 16, 16), (33, 17, 3)):
        low_rank = LowRankOps("cpu", dtype, rank)
        table = low_rank.table(2, 1)
        a = torch.randn(rank, width).to(dtype) / width**0.5
        b = torch.randn(columns, rank).to(dtype) / rank**0.5
        bias = torch.randn(columns).to(dtype)
        factors = LowRankFactors(0, lay(a), lay(b))
        table.put(1, low_rank.pack([LowRankParts([factors], lay(bias))])[0])
        rows = low_rank.rows(2)
        rows.set_adapters(np.array([1, -1, 1], dtype=np.int32))
        x = torch.randn(3, width).to(dtype)
        before = torch.randn(3, columns).to(dtype)
        out = lay(before)
        low_rank.add(out, lay(x), rows.select(None), table)
        delta = (x.double() @ a.double().T) @ b.double().T + bias.double()
        delta[1] = 0
        yield out.double(), before.double() + delta


def quantized(lay: Layout, dtype: torch.dtype) -> Pairs:
    """Products with int4 weights, their rows, and rows of x in eight bits."""
    for width in (64, 72):
        numbers = QuantizedOps(4, 32, torch.float16)
        codes = torch.randint(-8, 8, (5, width), dtype=torch.int8)
        scales = (torch.rand(5, -(-width // 32)) / 8).half()
        weight = numbers.empty(5, width, dtype)
        numbers.pack_codes(weight, 5, 0, codes, scales)
        plain = codes.float() * scales.float().repeat_interleave(32, 1)[:, :width]
        x = torch.randn(3, width).to(dtype)
        yield numbers.linear(lay(x), weight, 5).float(), x.float() @ plain.T
        yield numbers.rows(weight, 5, width, torch.tensor([4, 0])), plain[[4, 0]]
        values, steps = round_rows(lay(x), 32)[:2]
        yield values.float() * steps.repeat_interleave(32, 1)[:, :width], _rounded(x, 32)
        normed = reference.rms_norm(x, x[0], 1e-6, 1.0)
        rows = RowQuantizer(32).rms_norm(lay(x), lay(x[0]), 1e-6, 1.0)
        found = rows.values.float() * rows.scales.repeat_interleave(32, 1)[:, :width]
        yield found, _rounded(normed, 32)


def integers(lay: Layout, dtype: torch.dtype) -> Pairs:
    """Products of eight-bit integers by x, which is rounded as well unless it is float32."""
    dtype = torch.bfloat16 if dtype is torch.float32 else dtype
    for width in (64, 75):
        numbers = ScaledIntOps(torch.float16)
        codes = torch.randint(-128, 128, (5, width), dtype=torch.int8)
        scales = (torch.rand(5, 1) / 8).half()
        weight = numbers.empty(5, width, dtype)
        numbers.pack_codes(weight, 5, 0, codes, scales)
        x = torch.randn(3, width).to(dtype)
        steps = x.float().abs().amax(1, keepdim=True) / 127
        sums = (x.float() / steps).round() @ codes.float().T
        yield _within_16_bits(numbers.linear(lay(x), weight, 5), sums * steps * scales.float().T)


def _within_16_bits(found: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Return results that are rounded to 16 bits for every dtype, and what they must equal."""
    is_near = (found.float() - expected).abs() <= 1e-2 * expected.abs().max()
    return torch.where(is_near, expected, found.float()), expected


def blocks_of_floats(lay: Layout, dtype: torch.dtype) -> Pairs:
    """Products of MXFP4 by x, which is rounded as well unless it is float32."""
    dtype = torch.bfloat16 if dtype is torch.float32 else dtype
    for width in (64, 75):
        numbers = BlockScaledOps()
        codes = torch.tensor([-12, -3, 0, 1, 8], dtype=torch.int8)[torch.randint(5, (6, width))]
        scales = torch.exp2(torch.randint(-5, 2, (6, -(-width // 32))).float())
        weight = numbers.empty(6, width, dtype)
        numbers.pack_codes(weight, 6, 0, codes, scales)
        plain = codes.float() * scales.repeat_interleave(32, 1)[:, :width]
        x = torch.randn(3, width).to(dtype)
        rounded = decoded(block_scaled.round_rows(x), width)
        yield decoded(block_scaled.round_rows(lay(x)), width), rounded
        yield _within_16_bits(numbers.linear(lay(x), weight, 6), rounded @ plain.T)


def rows_of_nvfp4(lay: Layout, dtype: torch.dtype) -> Pairs:
    """Inputs rounded to NVFP4 as in contiguous memory, which `test_nvfp4.py` compares."""
    for width in (32, 80):
        x = torch.randn(5, width).to(dtype)
        expected = decoded(nvfp4.round_rows(aligned(x)), width)
        yield decoded(nvfp4.round_rows(lay(x)), width), expected


def selection(lay: Layout, dtype: torch.dtype) -> Pairs:
    """Positions that an indexer selects, and attention to them."""
    count = 5
    heads = 3
    size = 6
    top_k = 4
    table = torch.arange(12, dtype=torch.int32).view(2, 6)
    starts = torch.tensor([0, 2, count], dtype=torch.int32)
    lengths = torch.tensor([3, 19])
    step = Step(lay(starts), lay(lengths), lay(table), 4, count)
    plan = plan_tokens(step, top_k, 8)
    seen = torch.tensor([2, 3, 17, 18, 19])
    yield plan.lengths, seen.clamp(max=top_k)
    query, cache = (torch.randint(-2, 3, shape) for shape in ((count, heads, size), (12, 4, size)))
    weights = torch.randint(-2, 3, (count, heads)).float()
    found = select_positions(
        lay(query.to(dtype)), lay(weights), lay(cache.to(dtype)), step, plan, top_k, 24, 8
    )
    latents = torch.randn(12, 1, 4, 1, 24).to(dtype)
    reads = torch.randn(count, heads, 24).to(dtype)
    layer = LayerShape(heads, 1, 24, 16, 0.3, is_latent=True, causal=False)
    own = Step(plan.starts, plan.lengths, lay(table), 4, count, queries=1)
    chosen = Selected(lay(found), plan.owners)
    out = lay(torch.zeros(count, heads, 16, dtype=dtype))
    attend(layer, lay(reads), lay(latents), own, out, chosen, skip_single=False)
    for token in range(count):
        blocks = table[int(token >= 2)].long()
        keys = cache[blocks].flatten(0, 1)[: int(seen[token])].float()
        scores = weights[token] @ (query[token].float() @ keys.T).relu()
        best = scores.argsort(descending=True, stable=True)[:top_k].sort().values
        yield found[token, : len(best)], best.int()
        mine = latents[blocks, 0, :, 0].flatten(0, 1)[best].double()
        shares = (reads[token].double() @ mine.T * 0.3).softmax(-1)
        yield out[token].double(), shares @ mine[:, :16]


def _rounded(x: Tensor, group: int) -> Tensor:
    """Return x as float8_e4m3fn with a scale for each group of columns of a row."""
    parts = []
    for part in x.float().split(group, 1):
        scale = part.abs().amax(1, keepdim=True) / 448
        parts.append((part / scale).to(torch.float8_e4m3fn).float() * scale)
    return torch.cat(parts, 1)


def copies(lay: Layout, dtype: torch.dtype) -> Pairs:
    """Copies of blocks within a cache, and packed."""
    for width in (16, 7):
        source = torch.randn(3, width).to(dtype)
        target = lay(torch.zeros(3, width, dtype=dtype))
        copy_blocks(lay(source), target, torch.tensor([[0, 2]]))
        yield target[2], source[0]
        blocks = [torch.randint(0, 255, (3, size), dtype=torch.uint8) for size in (width, 24)]
        copier = BlockCopier([lay(each) for each in blocks])
        rows = copier.gather(torch.tensor([2, 0]))
        yield rows, torch.cat(blocks, 1)[[2, 0]]
        copier.scatter(torch.tensor([1, 2]), rows)
        yield copier.gather(torch.tensor([1])), rows[:1]


KERNELS: Final = {
    "attention": attention,
    "cache writes": cache_writes,
    "adapters": adapters,
    "quantized": quantized,
    "integers": integers,
    "blocks of floats": blocks_of_floats,
    "rows of NVFP4": rows_of_nvfp4,
    "selection": selection,
    "copies": copies,
}
