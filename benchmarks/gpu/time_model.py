"""Time of a step of a dense model on a GPU: the launches of `launches.md` one after the other.

A launch takes the longest of its reads and writes, its matrix products and its other arithmetic, by
the card's rates and the audited programs, and a fixed time between launches of a graph. Library
products have no audited program; they reach the card's rates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.gpu.cards import Audited, Card
from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.launch_table import committed
from benchmarks.peers.limits import Shape

NODE_S: Final = 1.3e-6
"""Time between dependent launches of a graph."""
LAUNCH_S: Final = 2.5e-6
"""Time between launches by the host."""
LATENCY_S: Final = 0.7e-6
"""Time of a read that waits for device memory; of one from the cache between multiprocessors, less
than half.
"""
CACHED_S: Final = 0.3e-6
FAST_PRODUCTS: Final = ("wgmma", "tcgen05.mma")
"""Matrix instructions that reach the card's rate."""
SCORE_OPS: Final = 12
"""Other operations per attention score: scale, mask, maximum, sum, conversion."""
SCALAR_LANES: Final = 128
EXPONENTIAL_LANES: Final = 16
"""Results per clock of a multiprocessor."""
TILE_ROWS: Final = 64
"""Query rows of a prompt's program."""
DECODE_ROWS: Final = 16
"""Query rows of a single token's program; rows without a head are computed, too."""
PROGRAMS: Final = 3
"""Decode programs per multiprocessor, over all KV heads."""
UNPACK_OPS: Final = 4
"""Operations that make a bfloat16 of an int4 code."""
NVFP4_BYTES: Final = 0.5 + 1 / 16
"""Bytes of a number and of its part of a scale."""
PARTIALS: Final = 8
"""Partial sums that a merge reads at a time."""
PIECE: Final = 64
"""Keys of a decode piece."""
PROCESSES_S: Final = 2.0
"""Start of the processes and their imports (1.5 s on the machine of `benchmarks/LOG.md`), and the
device's context.
"""
PAGEABLE_BYTES_S: Final = 8e9
"""Copies to a device from mapped files that are in the page cache."""
CACHED_KERNEL_S: Final = 5e-3
"""Loading a kernel from Triton's cache."""
FUSED_ROWS: Final = 64
"""Rows up to which gate, up and activation are one launch."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one launch reads, writes and computes."""

    kernel: str
    """A Triton kernel, or `product` for the library's."""
    moved_bytes: float
    flop: float = 0.0
    """Of matrix products."""
    bits: int = 16
    """Of the numbers that are multiplied."""
    scalar_ops: float = 0.0
    exponentials: float = 0.0
    programs: float = float("inf")
    chain_s: float = 0.0
    """Time of reads that wait for each other."""
    variant: int = 0
    """Index of the audited program."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: rows of linear layers, sampled rows, and attention."""

    rows: int
    sampled: int
    read_positions: int
    """Cached positions that single tokens read."""
    longest: int
    """Positions that the longest of them reads."""
    prompt_pairs: float
    """(query, key) pairs of prompts."""
    graph: bool = True
    """Whether the model's launches are replayed as one graph."""


class TimeModel:
    """Predicts times on one card, with its rates."""

    def __init__(self, card: Card, rates: Ceilings, programs: dict[str, list[Audited]]) -> None:
        self._card = card
        self._rates = rates
        self._programs = programs
        self._launches = committed()["LlamaForCausalLM"]

    def launch_s(self, work: Work) -> float:
        """Return the device time of a launch, without the time before it."""
        card = self._card
        programs = self._programs.get(work.kernel)
        bandwidth = self._rates.read_bytes_s
        flop_s = self._rates.product_rate(work.bits)
        overlap = 1.0
        if programs:
            program = programs[min(work.variant, len(programs) - 1)]
            at_once = min(work.programs, program.resident * card.processors)
            bandwidth = min(bandwidth, at_once * program.flying_bytes / LATENCY_S)
            overlap = float(program.resident)
            if not any(kind in program.products for kind in FAST_PRODUCTS):
                flop_s *= card.mma_sync_share
        lanes = card.processors * card.clock_hz
        scalar_s = work.scalar_ops / (SCALAR_LANES * lanes)
        scalar_s += work.exponentials / (EXPONENTIAL_LANES * lanes)
        products_s = work.flop / flop_s
        # Programs on one multiprocessor hide each other's arithmetic.
        computing_s = max(products_s, scalar_s) + min(products_s, scalar_s) / overlap
        return max(work.moved_bytes / bandwidth, computing_s) + LATENCY_S + work.chain_s

    def step_parts(self, shape: Shape, batch: Batch) -> Counter[str]:
        """Return the seconds of a step by kernel; `launches` is the time between launches."""
        seconds: Counter[str] = Counter()
        count = self._launches.model
        for work in layer_works(shape, batch, self._card.processors):
            seconds[work.kernel] += shape.layers * self.launch_s(work)
            count += shape.layers
        for work in step_works(shape, batch):
            seconds[work.kernel] += self.launch_s(work)
        seconds["launches"] = count * (NODE_S if batch.graph else LAUNCH_S)
        seconds["launches"] += LAUNCH_S * self._launches.outside
        return seconds


def warm_start(weight_bytes: float, num_kernels: int, largest_step_s: float) -> dict[str, float]:
    """Return the seconds until the first token, with the model's files and kernels in caches.

    The largest step runs once, so that its memory is measured. Nothing is captured before the first
    token.
    """
    return {
        "processes": PROCESSES_S,
        "weights": weight_bytes / PAGEABLE_BYTES_S,
        "kernels": num_kernels * CACHED_KERNEL_S,
        "measured step": largest_step_s,
    }


def layer_works(shape: Shape, batch: Batch, processors: int) -> Iterator[Work]:
    """Yield the launches of one layer."""
    rows = batch.rows
    row_bytes = 2 * rows
    width = shape.heads * shape.head_dim
    kv_width = 2 * shape.kv_heads * shape.head_dim
    yield Work("_add_norm", 4 * row_bytes * shape.hidden, programs=rows)
    yield product(*shape.products["qkv"], rows)
    yield Work("_write_qk_norm_rope", 2 * row_bytes * (width + kv_width), programs=rows)
    if batch.read_positions:
        yield decode_work(shape, batch.read_positions, batch.longest, processors)
    if batch.prompt_pairs:
        yield prompt_work(shape, batch.prompt_pairs, rows)
    yield product(*shape.products["out"], rows)
    yield Work("_add_norm", 4 * row_bytes * shape.hidden, programs=rows)
    double, hidden = shape.products["gate_up"]
    if rows <= FUSED_ROWS:
        moved = 2 * double * hidden + row_bytes * (hidden + shape.intermediate)
        flop = 2 * double * hidden * max(16, rows)
        yield Work("_gated_product", moved, flop, programs=shape.intermediate / 64)
    else:
        yield product(double, hidden, rows)
        yield Work("_gated", row_bytes * 3 * shape.intermediate)
    yield product(*shape.products["down"], rows)


def product(height: int, width: int, rows: int) -> Work:
    """Return a product of the library with a bfloat16 weight."""
    moved = 2 * (height * width + rows * (height + width))
    return Work("product", moved, 2 * height * width * rows)


def int4_product(height: int, width: int, rows: int) -> Work:
    """Return the product with an int4 weight; each block of rows unpacks its codes."""
    block = min(TILE_ROWS, max(16, rows))
    blocks = -(-rows // block)
    weights = height * width
    return Work(
        "_product",
        0.516 * weights + 2 * rows * (height + width),
        2.0 * weights * blocks * block,
        scalar_ops=UNPACK_OPS * weights * blocks,
        programs=blocks * height / 64,
        variant=int(block == TILE_ROWS),
    )


def float8_products(height: int, width: int, rows: int) -> Iterator[Work]:
    """Yield the rounding of x and the library's product with a float8 weight."""
    # A program rounds a group of 128; of whole rows, 4,096 elements at a time.
    chain_s = 2 * LATENCY_S * -(-width // 4096)
    yield Work("_round", 3.0 * rows * width, programs=rows * width / 128, chain_s=chain_s)
    moved = height * width + rows * (2 * height + width)
    yield Work("product", moved, 2.0 * height * width * rows, bits=8)


def nvfp4_products(height: int, width: int, rows: int) -> Iterator[Work]:
    """Yield the rounding of x and the product with a weight, both in NVFP4."""
    # A program rounds a row: it reads it twice, 4,096 elements at a time.
    chain_s = (LATENCY_S + CACHED_S) * -(-width // 4096)
    x_bytes = NVFP4_BYTES * rows * width
    yield Work("_round_nvfp4", 2.0 * rows * width + x_bytes, programs=rows, chain_s=chain_s)
    block = min(TILE_ROWS, max(16, rows))
    blocks = -(-rows // block)
    moved = NVFP4_BYTES * height * width + x_bytes + 2.0 * rows * height
    yield Work(
        "_block_scaled_product",
        moved,
        2.0 * height * width * blocks * block,
        bits=4,
        programs=blocks * height / 128,
        variant=2 + int(block == TILE_ROWS),
    )


def decode_work(shape: Shape, positions: int, longest: int, processors: int) -> Work:
    """Return the attention of single tokens to `positions` keys in all."""
    padded_rows = max(DECODE_ROWS, shape.heads // shape.kv_heads)
    scores = float(positions * shape.kv_heads * padded_rows)
    programs = PROGRAMS * processors // shape.kv_heads
    share = -(-positions // PIECE // programs) or 1
    partials = -(-longest // PIECE // share)
    # The last program merges partial sums, which are in the cache between multiprocessors: an
    # arrival, two reads of where they are, and the sums.
    waits = 3 + -(-partials // PARTIALS) if partials > 1 else 0
    return Work(
        "_decode",
        2.0 * positions * 2 * shape.kv_heads * shape.head_dim,
        4 * scores * shape.head_dim,
        scalar_ops=SCORE_OPS * scores,
        exponentials=scores,
        programs=programs * shape.kv_heads,
        chain_s=CACHED_S * waits,
    )


def prompt_work(shape: Shape, pairs: float, rows: int) -> Work:
    """Return the attention of prompts; a tile on the diagonal computes hidden pairs, too."""
    scores = (pairs + rows * TILE_ROWS / 2) * shape.heads
    moved = 2.0 * rows * shape.head_dim * 2 * (shape.heads + shape.kv_heads)
    flop = 4 * scores * shape.head_dim
    return Work("_attend", moved, flop, scalar_ops=SCORE_OPS * scores, exponentials=scores)


def step_works(shape: Shape, batch: Batch) -> Iterator[Work]:
    """Yield the launches outside of the layers that move much: embedding, head and sampling."""
    yield Work("embedding", 4.0 * batch.rows * shape.hidden)
    yield Work("_add_norm", 8.0 * batch.rows * shape.hidden, programs=batch.rows)
    yield product(shape.vocab, shape.hidden, batch.sampled)
    logits = batch.sampled * shape.vocab
    yield Work("widen", 6.0 * logits)
    yield Work("temperature", 8.0 * logits)
    for kernel in ("_top", "_top", "_weigh", "_sample"):  # the first finds rows that are not finite
        yield Work(kernel, 4.0 * logits)


def batches(prompts: Sequence[int], outputs: Sequence[int], budget: int) -> Iterator[Batch]:
    """Yield the steps of requests that arrive together: prompts in steps of `budget` tokens, then
    one token of each running request a step.
    """
    left = sum(prompts)
    pairs = sum(count**2 / 2 for count in prompts) / max(1, left)
    while left > 0:
        rows = min(left, budget)
        sampled = max(1, round(len(prompts) * rows / sum(prompts)))
        yield Batch(rows, sampled, 0, 0, pairs * rows, graph=False)
        left -= rows
    for step in range(1, max(outputs)):
        running = [
            prompt + step for prompt, output in zip(prompts, outputs, strict=True) if output > step
        ]
        yield Batch(len(running), len(running), sum(running), max(running), 0.0)
