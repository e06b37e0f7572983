"""Workloads W4, W5 (attention) and W6: kernels in shapes of an 8B model, compared with torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu.bench_kernels import Sizes, decode
from benchmarks.gpu.ceilings import Ceilings, multiplies_blocks
from benchmarks.gpu.clock import Clock, Row, Work

ROTATED_BYTES = 256 << 20
"""Total bytes of alternating weights, so that none stays in a device cache."""


@dataclass(frozen=True, slots=True)
class KernelSizes:
    """Sizes of the kernel workloads."""

    attention: Sizes
    decodes: dict[str, tuple[int, ...]]
    prompt: int
    products: tuple[tuple[int, int], ...]
    """Rows and columns of the weights of a layer."""
    rows: tuple[int, ...]
    """Rows of x."""


REAL = KernelSizes(
    Sizes(),
    {
        "64 x 4K": (4096,) * 64,
        "256 x 1K": (1024,) * 256,
        "8 x 32K": (32768,) * 8,
        "1 x 128K": (131072,),
        "1 x 128K + 31 x 4K": (131072, *[4096] * 31),
        "32 x 128 + 32 x 4K": (*[128] * 32, *[4096] * 32),
    },
    8192,
    ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    (1, 4, 16, 32, 64, 256, 4096),
)
TOY = KernelSizes(Sizes(3, 32, 48, 4, 2, 16), {"2": (20, 7)}, 20, ((32, 128),), (1, 3))


def decoding(clock: Clock, ceilings: Ceilings, sizes: KernelSizes) -> Iterator[Row]:
    """W4: decode attention of one layer."""
    for name, lengths in sizes.decodes.items():
        case = decode(name, sizes.attention, lengths, clock.device)
        target = "0.92" if len(set(lengths)) == 1 else "0.85"
        yield Row(
            f"W4 {name}",
            clock.seconds([case.ours]),
            case.moved_bytes / ceilings.read_bytes_s,
            target,
        )


def prompt_attention(clock: Clock, ceilings: Ceilings, sizes: KernelSizes) -> Iterator[Row]:
    """W5: prefill attention, compared with torch over contiguous keys."""
    from builtin_plugins.attention_backends.triton.backend import (
        TritonAttention,
    )  # lazy: after the interpreter setting
    from core.api.models import AttentionInputs
    from core.model_spec.attention_params import AttentionParams
    from core.model_spec.kv import FullAttention

    own = sizes.attention
    count = sizes.prompt
    size = 16
    blocks = -(-count // size)
    backend = TritonAttention()
    spec = FullAttention(own.kv_heads, own.head_size, "bfloat16")

    def draw(heads: int) -> torch.Tensor:
        return torch.randn(count, heads, own.head_size, device=clock.device).to(torch.bfloat16)

    query = draw(own.heads)
    key = draw(own.kv_heads)
    value = draw(own.kv_heads)
    cache = torch.zeros(
        backend.cache_shape(spec, blocks + 1, size), dtype=torch.bfloat16, device=clock.device
    )
    table = torch.arange(1, blocks + 1, dtype=torch.int32, device=clock.device)[None]
    slots = torch.arange(size, size + count, device=clock.device)
    lengths = torch.tensor([count], device=clock.device)
    plan = backend.prepare(
        AttentionInputs([0, count], [count], table, slots, size, spec, lengths=lengths)
    )
    params = AttentionParams(own.heads, own.kv_heads, own.head_size, own.head_size**-0.5)
    ours = clock.seconds([lambda: backend.attend(params, query, key, value, cache, plan)])
    q, k, v = (each.transpose(0, 1)[None] for each in (query, key, value))
    attention = torch.nn.functional.scaled_dot_product_attention
    torchs = clock.seconds([lambda: attention(q, k, v, is_causal=True, enable_gqa=True)])
    flop = 2 * count**2 * own.heads * own.head_size
    comparison = f"{torchs / ours:.2f} times as fast as torch's over contiguous keys (0.85)"
    yield Row(f"W5 attention of {count}", ours, flop / ceilings.flop_s, "", comparison)


def products(clock: Clock, ceilings: Ceilings, sizes: KernelSizes) -> Iterator[Row]:
    """W6: all linear layers of a layer with low-bit weights, compared with bfloat16."""
    from core_kernels.triton.quantized import WHOLE_ROW  # lazy: as above
    from core_kernels.triton.scaled_mm import ScaledFloatOps

    formats = {
        "W4, groups of 128": (lambda shape: integers(clock, *shape), 0.516, 16),
        "FP8, rows": (
            lambda shape: floats(clock, ScaledFloatOps(torch.float8_e4m3fn, WHOLE_ROW), *shape),
            1.0,
            8,
        ),
        "FP8, 128": (
            lambda shape: floats(clock, ScaledFloatOps(torch.float8_e4m3fn, 128), *shape),
            1.0,
            8,
        ),
    }
    if multiplies_blocks(clock):
        formats["NVFP4"] = (lambda shape: nvfp4(clock, *shape), 0.5625, 4)
    for count in sizes.rows:
        plain = sum(
            clock.seconds(rotated(clock, shape, count, lambda own: plain_weight(clock, *own), 2.0))
            for shape in sizes.products
        )
        for name, (make, bytes_each, bits) in formats.items():
            seconds = sum(
                clock.seconds(rotated(clock, shape, count, make, bytes_each))
                for shape in sizes.products
            )
            limit = sum(
                ceilings.least_s(rows * width * bytes_each, 2 * count * rows * width, bits=bits)
                for rows, width in sizes.products
            )
            yield Row(
                f"W6 {name}, {count} rows",
                seconds,
                limit,
                "",
                f"{plain / seconds:.2f} times torch's bfloat16 ({aim(name, count)})",
            )


def aim(name: str, count: int) -> str:
    """Return the target speedup over bfloat16."""
    if name.startswith("W4"):
        return "3.4" if count <= 16 else "2.8" if count <= 32 else "1.0"
    if name.startswith("NVFP4"):
        return ""
    return "1.9" if count <= 64 else "1.75" if count >= 4096 else ""


def rotated(
    clock: Clock, shape: tuple[int, int], count: int, make: object, bytes_each: float
) -> list[Work]:
    """Return a product that cycles through several weights."""
    rows, width = shape
    copies = (
        max(1, int(ROTATED_BYTES / (rows * width * bytes_each))) if clock.device == "cuda" else 1
    )
    x = torch.randn(count, width, device=clock.device).to(torch.bfloat16)

    def work(multiply: object) -> Work:
        return lambda: multiply(x)  # type: ignore[operator]

    return [work(make(shape)) for _ in range(copies)]  # type: ignore[operator]


def plain_weight(clock: Clock, rows: int, width: int) -> object:
    """Return the product with a bfloat16 weight."""
    weight = torch.randn(rows, width, device=clock.device).to(torch.bfloat16)
    return lambda x: torch.nn.functional.linear(x, weight)


def integers(clock: Clock, rows: int, width: int) -> object:
    """Return the product with int4 weights."""
    from core_kernels.triton.quantized import QuantizedOps  # lazy: as above

    ops = QuantizedOps(4, 128)
    weight = ops.empty(rows, width, torch.bfloat16).to(clock.device)
    codes = torch.randint(-8, 8, (rows, width), dtype=torch.int8, device=clock.device)
    ops.pack_codes(
        weight, rows, 0, codes, torch.rand(rows, ops.groups(width), device=clock.device) / 8
    )
    return lambda x: ops.linear(x, weight, rows)


def nvfp4(clock: Clock, rows: int, width: int) -> object:
    """Return the product of weights and activations in NVFP4."""
    from core_kernels.triton.nvfp4 import NvFp4Ops  # lazy: as above

    ops = NvFp4Ops()
    weight = ops.empty(rows, width, torch.bfloat16).to(clock.device)
    codes = torch.tensor([-12, -6, 0, 3, 12], dtype=torch.int8, device=clock.device)
    chosen = codes[torch.randint(0, len(codes), (rows, width), device=clock.device)]
    scales = torch.rand(rows, width // ops.group, device=clock.device)
    ops.pack_codes(weight, rows, 0, chosen, scales, factors=torch.ones(rows, 1))
    return lambda x: ops.linear(x, weight, rows)


def floats(clock: Clock, ops: object, rows: int, width: int) -> object:
    """Return the product with float8 weights and activations."""
    weight = ops.empty(rows, width, torch.bfloat16).to(clock.device)  # type: ignore[attr-defined]
    values = torch.randn(rows, width, device=clock.device).to(torch.float8_e4m3fn)
    ops.pack_codes(
        weight, rows, 0, values, torch.rand(rows, ops.groups(width), device=clock.device)
    )  # type: ignore[attr-defined]
    return lambda x: ops.linear(x, weight, rows)  # type: ignore[attr-defined]
