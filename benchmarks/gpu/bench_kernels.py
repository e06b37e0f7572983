"""Triton kernels compared with torch and with the bandwidth of a copy.

Prints one table: time, bytes per second, and share of the copy bandwidth. `--smoke` computes tiny
shapes, with Triton's interpreter on machines without a GPU, and times nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """The same work by a kernel and, where possible, by torch."""

    name: str
    moved_bytes: int
    """Minimum bytes to read and write."""
    ours: Work
    torchs: Work | None


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model with 8 billion parameters, or tiny ones."""

    tokens: int = 256
    hidden: int = 4096
    width: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    lengths: tuple[int, ...] = (4096,) * 64
    skewed: tuple[int, ...] = (131072, *[4096] * 31)
    vocab: int = 128256


TOY = Sizes(3, 32, 48, 4, 2, 16, (20, 7), (70, 3, 1), 300)


def cases(sizes: Sizes, device: str) -> list[Case]:
    """Return all cases, on random tensors."""
    from core_kernels.triton import row_ops, sampling  # lazy: after the interpreter setting

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).to(torch.bfloat16)

    x = draw(sizes.tokens, sizes.hidden)
    residual = draw(sizes.tokens, sizes.hidden)
    weight = draw(sizes.hidden)
    both = draw(sizes.tokens, 2 * sizes.width)
    logits = draw(sizes.tokens, sizes.vocab).float()
    seeds = torch.arange(sizes.tokens, device=device)
    half = sizes.width

    def torch_norm() -> object:
        return torch.nn.functional.rms_norm(x + residual, (sizes.hidden,), weight, 1e-6)

    def torch_gated() -> object:
        return torch.nn.functional.silu(both[:, :half]) * both[:, half:]

    return [
        Case(
            "add_rms_norm",
            4 * x.nbytes,
            lambda: row_ops.add_rms_norm(x, residual, weight, 1e-6),
            torch_norm,
        ),
        Case(
            "silu_and_mul", both.nbytes * 3 // 2, lambda: row_ops.gated(both, "silu"), torch_gated
        ),
        Case("best", logits.nbytes, lambda: sampling.argmax(logits), lambda: logits.max(-1)),
        Case(
            "draw",
            logits.nbytes,
            lambda: sampling.sample(logits, seeds, seeds),
            lambda: logits.softmax(-1).multinomial(1),
        ),
        decode("decode, uniform", sizes, sizes.lengths, device),
        decode("decode, one long", sizes, sizes.skewed, device),
    ]


def decode(name: str, sizes: Sizes, lengths: tuple[int, ...], device: str) -> Case:
    """Return a decode attention case of one layer with random blocks."""
    from builtin_plugins.attention_backends.triton.backend import TritonAttention  # lazy: as above
    from core.api.models import AttentionInputs
    from core.model_spec.attention_params import AttentionParams
    from core.model_spec.kv import FullAttention

    size = 16
    count = len(lengths)
    blocks = [-(-length // size) for length in lengths]
    backend = TritonAttention()
    spec = FullAttention(sizes.kv_heads, sizes.head_size, "bfloat16")
    cache = torch.randn(backend.cache_shape(spec, sum(blocks) + 1, size), device=device).to(
        torch.bfloat16
    )
    table = torch.zeros(count, max(blocks), dtype=torch.int32)
    dealt = torch.randperm(sum(blocks)) + 1
    for row, own in enumerate(dealt.split(blocks)):
        table[row, : len(own)] = own
    ends = torch.tensor(lengths) - 1
    slots = table[torch.arange(count), ends // size].long() * size + ends % size
    inputs = AttentionInputs(
        list(range(count + 1)), list(lengths), table.to(device), slots.to(device), size, spec,
        lengths=torch.tensor(lengths).to(device),
    )  # fmt: skip
    params = AttentionParams(sizes.heads, sizes.kv_heads, sizes.head_size, sizes.head_size**-0.5)
    query = torch.randn(count, sizes.heads, sizes.head_size, device=device).to(torch.bfloat16)
    key = torch.randn(count, sizes.kv_heads, sizes.head_size, device=device).to(torch.bfloat16)
    plan = backend.prepare(inputs)
    moved = sum(lengths) * spec.token_bytes
    return Case(name, moved, lambda: backend.attend(params, query, key, key, cache, plan), None)


def seconds(work: Work, repeats: int = 50) -> float:
    """Return the mean device time after warmup."""
    for _ in range(5):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000 / repeats


def bandwidth() -> float:
    """Return the bytes per second of a 2 GiB copy, read and write."""
    source = torch.randint(0, 255, (1 << 31,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), repeats=10)


def measure() -> None:
    """Print the table of a GPU."""
    peak = bandwidth()
    print(f"{torch.cuda.get_device_name()}: a copy moves {peak / 1e12:.2f} TB/s\n")
    print("| work | ours, us | torch, us | TB/s | share of a copy's |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for case in cases(Sizes(), "cuda"):
        own = seconds(case.ours)
        other = "" if case.torchs is None else f"{seconds(case.torchs) * 1e6:.1f}"
        rate = case.moved_bytes / own
        print(
            f"| {case.name} | {own * 1e6:.1f} | {other} | {rate / 1e12:.2f} | {rate / peak:.0%} |"
        )


def main() -> int:
    """Measure, or compute tiny shapes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="compute toy shapes and time nothing")
    has_gpu = torch.cuda.is_available()
    if parser.parse_args().smoke:
        if not has_gpu:
            os.environ["TRITON_INTERPRET"] = "1"
        for case in cases(TOY, "cuda" if has_gpu else "cpu"):
            case.ours()
            print(f"{case.name}: computed, nothing is timed")
        return 0
    if not has_gpu:
        print(
            "there is no GPU that torch sees; --smoke computes toy shapes in Triton's interpreter"
        )
        return 0
    measure()
    return 0


if __name__ == "__main__":
    sys.exit(main())
