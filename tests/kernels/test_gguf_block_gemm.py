"""Weights in the blocks of GGUF files: the numbers that the gguf library makes of them, and
products that are right in any company.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from core_kernels.library import load_library
from core_kernels.superblocks import KINDS, SuperblockOps

gguf = pytest.importorskip("gguf")
quants = pytest.importorskip("gguf.quants")
np = pytest.importorskip("numpy")

LIBRARY = load_library()
HALVES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where blocks have their scales; others at 0."""
GROUPS = {"Q2_K": 16, "Q3_K": 16, "Q6_K": 16}
"""Inputs that share a scale; of others 32."""
SIZES = [(16, 1), (70, 3), (130, 2)]
"""Rows, and blocks of a row."""
COUNTS = [1, 2, 5, 13, 70]
"""From a single row to as many as panels are opened for, on every instruction set."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 8e-3, torch.float16: 2e-3}

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ library on this machine")


def random_blocks(kind: str, rows: int, blocks: int) -> torch.Tensor:
    """Return uint8 [rows, blocks, bytes], any codes with scales of all signs."""
    random = np.random.default_rng(rows)
    raw = random.integers(0, 256, (rows, blocks, KINDS[kind].num_bytes), dtype=np.uint8)
    for at in HALVES.get(kind, (0,)):
        raw[..., at : at + 2] = (
            random.normal(0, 0.01, (rows, blocks, 1)).astype("<f2").view(np.uint8)
        )
    return torch.from_numpy(raw)


def unpacked(kind: str, blocks: torch.Tensor) -> torch.Tensor:
    plain: Any = quants.dequantize(blocks.flatten(1).numpy(), gguf.GGMLQuantizationType[kind])
    return torch.from_numpy(plain)


def packed(ops: SuperblockOps, blocks: torch.Tensor) -> torch.Tensor:
    """Return blocks as the kernels have them, in two parts."""
    rows = len(blocks)
    weight = ops.empty(rows, blocks.shape[1] * ops.block.inputs)
    ops.pack(weight, rows, rows // 3, blocks[rows // 3 :])
    ops.pack(weight, rows, 0, blocks[: rows // 3])
    return weight


def product(ops: SuperblockOps, x: torch.Tensor, weight: torch.Tensor, rows: int) -> torch.Tensor:
    out = x.new_empty(len(x), rows)
    ops.linear(x, weight, out)
    return out


def in_eight_bits(kind: str, x: torch.Tensor) -> torch.Tensor:
    """Return float64 x, of which the largest number among those that share a scale of the weight
    has become 127 steps.
    """
    own = x.double().unflatten(1, (-1, GROUPS.get(kind, 32)))
    steps = own.abs().amax(2, keepdim=True) / 127
    return ((own / steps.clamp(min=1e-30)).round() * steps).flatten(1)


@pytest.mark.parametrize("kind", KINDS)
def test_gguf_blocks_unpack_and_multiply_batch_invariantly(isa: str, kind: str) -> None:
    ops = SuperblockOps(LIBRARY, kind)
    for rows, blocks in SIZES:
        stored = random_blocks(kind, rows, blocks)
        plain = unpacked(kind, stored)
        weight = packed(ops, stored)
        width = plain.shape[1]
        found = ops.rows(weight, rows, width, torch.arange(rows))
        assert torch.allclose(found, plain, rtol=1e-5, atol=1e-6)
        for dtype, tolerance in TOLERANCE.items():
            x = torch.randn(max(COUNTS), width).to(dtype)
            scale = x.double().norm(dim=1, keepdim=True) * plain.double().norm(dim=1)
            for bits, rounded in ((16, x.double()), (8, in_eight_bits(kind, x))):
                bound = SuperblockOps(LIBRARY, kind, bits)
                together = product(bound, x, weight, rows)
                assert (
                    (together.double() - rounded @ plain.double().T).abs() <= tolerance * scale
                ).all()
                for count in COUNTS:
                    assert torch.equal(product(bound, x[-count:], weight, rows), together[-count:])


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_of_the_largest_numbers_equals_several(isa: str, kind: str) -> None:
    """No sum of 16 bits is too small for them."""
    ops = SuperblockOps(LIBRARY, kind, 8)
    stored = random_blocks(kind, 64, 2)
    stored[::2] = 0
    stored[1::2] = 255
    for at in HALVES.get(kind, (0,)):
        stored[..., at : at + 2] = random_blocks(kind, 64, 2)[..., at : at + 2]
    weight = packed(ops, stored)
    halves = torch.tensor([1, 1, -1, -1]).repeat(2 * ops.block.inputs // 4)
    x = torch.stack([torch.ones_like(halves), -torch.ones_like(halves), halves, -halves]).bfloat16()
    together = product(ops, x, weight, 64)
    exact = x.double() @ unpacked(kind, stored).double().T
    scale = exact.abs().amax().clamp(min=1)
    assert ((together.double() - exact).abs() <= 8e-3 * scale).all()
    for row, found in zip(x, together, strict=True):
        assert torch.equal(product(ops, row[None], weight, 64)[0], found)


@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.float32, 16), (torch.bfloat16, 8), (torch.float16, 8)], ids=str
)
def test_activation_bits_follow_the_dtype_of_x(isa: str, dtype: torch.dtype, bits: int) -> None:
    stored = random_blocks("Q4_K", 64, 2)
    weight = packed(SuperblockOps(LIBRARY, "Q4_K"), stored)
    x = torch.randn(3, 512).to(dtype)
    found, exactly, other = (
        product(SuperblockOps(LIBRARY, "Q4_K", own), x, weight, 64)
        for own in (None, bits, 24 - bits)
    )
    assert torch.equal(found, exactly)
    assert not torch.equal(found, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K"])
def test_grouped_gemm_writes_into_a_wider_tensor(isa: str, kind: str, dtype: torch.dtype) -> None:
    ops = SuperblockOps(LIBRARY, kind)
    rows = 40
    width = 2 * ops.block.inputs
    counts = [3, 0, 90, 1]
    stored = [random_blocks(kind, rows, 2) for _ in counts]
    weights = ops.empty(rows, width, len(counts))
    for weight, own in zip(weights, stored, strict=True):
        ops.pack(weight, rows, 0, own)
    x = torch.randn(sum(counts), width).to(dtype)
    out = torch.zeros(sum(counts), rows + 9, dtype=dtype)
    ops.grouped(x, weights, torch.tensor(counts), out[:, 5 : 5 + rows])
    for own, part, found in zip(stored, x.split(counts), out.split(counts), strict=True):
        alone = product(ops, part, packed(ops, own), rows)
        assert torch.equal(found[:, 5 : 5 + rows], alone)
        assert not found[:, :5].any()
        assert not found[:, 5 + rows :].any()


def test_large_gemm_is_bitwise_invariant_to_threads(isa: str) -> None:
    ops = SuperblockOps(LIBRARY, "Q4_K")
    stored = random_blocks("Q4_K", 600, 2)
    weight = packed(ops, stored)
    x = torch.randn(450, 512).bfloat16()
    threads = torch.get_num_threads()
    try:
        LIBRARY.core_kernels_threads(1)  # type: ignore[union-attr]
        alone = product(ops, x, weight, 600)
        LIBRARY.core_kernels_threads(3)  # type: ignore[union-attr]
        assert torch.equal(product(ops, x, weight, 600), alone)
    finally:
        LIBRARY.core_kernels_threads(threads)  # type: ignore[union-attr]


@pytest.mark.parametrize("bits", [8, 16])
def test_nan_inputs_give_nan_outputs(isa: str, bits: int) -> None:
    ops = SuperblockOps(LIBRARY, "Q8_0", bits)
    weight = packed(ops, random_blocks("Q8_0", 16, 8))
    x = torch.ones(3, 256)
    x[0, 7] = float("nan")
    x[1, 9] = float("inf")
    found = product(ops, x, weight, 16)
    assert found[:2].isnan().all()
    assert found[2].isfinite().all()


def test_mismatched_shapes_are_rejected() -> None:
    ops = SuperblockOps(LIBRARY, "Q4_K")
    weight = ops.empty(16, 256)
    with pytest.raises(ValueError, match="whole Q4_K blocks of 256"):
        ops.empty(16, 300)
    with pytest.raises(ValueError, match="no weight of Q4_K of width 512"):
        product(ops, torch.zeros(1, 512), weight, 16)
    with pytest.raises(ValueError, match="blocks have 144 bytes"):
        ops.pack(weight, 16, 0, torch.zeros(16, 1, 143, dtype=torch.uint8))
    with pytest.raises(IndexError, match="expected 0 to 15"):
        ops.rows(weight, 16, 256, torch.tensor([16]))
