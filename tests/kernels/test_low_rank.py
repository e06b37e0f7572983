"""What adapters of low rank add: right by the plain products, alike in any company, and the same
when recorded.
"""

from __future__ import annotations

import pytest
import torch
from core_kernels.library import load_library
from core_kernels.low_rank import (
    LowRankFactors,
    LowRankLayer,
    LowRankOps,
    LowRankTable,
    packed_size,
)
from core_kernels.program import Program
from core_kernels.recording import Recording

LIBRARY = load_library()
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}
SHAPES = [(1, (1,)), (7, (5,)), (32, (64,)), (33, (40, 3)), (300, (130, 64, 65)), (64, (96, 33))]
"""Inputs, and the columns of each part."""
RANKS = [1, 3, 4, 8, 17]
NUM_ADAPTERS = 4

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ library on this machine")


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(*shape) / shape[-1] ** 0.5).to(dtype)


def parts_of(
    width: int, columns: tuple[int, ...], rank: int, dtype: torch.dtype
) -> list[LowRankFactors]:
    """Return factors of parts with an unchanged column between them, of different ranks."""
    parts = []
    first = 0
    for number, count in enumerate(columns):
        own = rank + number
        parts.append(
            LowRankFactors(first, random(own, width, dtype=dtype), random(count, own, dtype=dtype))
        )
        first += count + 1
    return parts


def packed(
    ops: LowRankOps, parts: list[LowRankFactors], bias: torch.Tensor | None, dtype: torch.dtype
) -> LowRankLayer:
    memory = ops.memory(packed_size(parts), dtype)
    memory.view(torch.uint8).fill_(0xFF)  # a number that is none wherever nothing is written
    return LowRankLayer(memory, parts, bias)


def expected(
    out: torch.Tensor,
    x: torch.Tensor,
    adapters: list[int],
    by_number: dict[int, tuple[list[LowRankFactors], torch.Tensor | None]],
) -> torch.Tensor:
    result = out.double()
    for row, number in enumerate(adapters):
        parts, bias = by_number.get(number, ([], None))
        for part in parts:
            columns = slice(part.first, part.first + len(part.b))
            result[row, columns] += (x[row].double() @ part.a.double().T) @ part.b.double().T
        if bias is not None:
            result[row] += bias.double()
    return result


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("width", "columns"), SHAPES)
def test_each_row_gets_its_adapters_delta(
    vector_isa: str, width: int, columns: tuple[int, ...], dtype: torch.dtype
) -> None:
    assert LIBRARY is not None
    ops = LowRankOps(LIBRARY)
    size = sum(columns) + len(columns)
    for rank in RANKS:
        by_number: dict[int, tuple[list[LowRankFactors], torch.Tensor | None]] = {
            0: (parts_of(width, columns, rank, dtype), None),
            1: (parts_of(width, columns[:1], 2 * rank, dtype), random(size, dtype=dtype)),
            2: ([], random(size, dtype=dtype)),
        }
        table = LowRankTable(NUM_ADAPTERS)
        for number, (parts, bias) in by_number.items():
            table.put(number, packed(ops, parts, bias, dtype))
        for rows in (0, 1, 2, 5, 21, 150):
            adapters = torch.randint(-1, NUM_ADAPTERS, (rows + 1,), dtype=torch.int32)
            x = random(rows, width + 3, dtype=dtype)[:, :width]
            before = random(rows, size + 5, dtype=dtype)
            after = before.clone()
            ops.add(after[:, :size], x, adapters, table)
            reference = expected(before[:, :size], x, adapters[:rows].tolist(), by_number)
            assert torch.equal(after[:, size:], before[:, size:])
            torch.testing.assert_close(
                after[:, :size].double(), reference, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
            )
            for row in range(0, rows, 7):  # alone
                own = before[row : row + 1, :size].clone()
                ops.add(own, x[row : row + 1], adapters[row : row + 1].clone(), table)
                assert torch.equal(own[0], after[row, :size])


def test_removed_adapter_adds_nothing() -> None:
    assert LIBRARY is not None
    ops = LowRankOps(LIBRARY)
    table = LowRankTable(1)
    table.put(0, packed(ops, parts_of(8, (8,), 2, torch.float32), None, torch.float32))
    table.put(0, None)
    out = torch.zeros(3, 9)
    ops.add(out, torch.ones(3, 8), torch.zeros(3, dtype=torch.int32), table)
    assert not out.any()


def test_replayed_call_reads_current_adapters() -> None:
    assert LIBRARY is not None
    ops = LowRankOps(LIBRARY)
    table = LowRankTable(2)
    layers = [
        packed(ops, parts_of(40, (70,), 4, torch.float32), None, torch.float32) for _ in range(3)
    ]
    table.put(0, layers[0])
    table.put(1, layers[1])
    adapters = torch.tensor([0, 1, -1], dtype=torch.int32)
    x = torch.randn(3, 40)

    base = torch.randn(3, 71)

    def call() -> torch.Tensor:
        out = base + base
        ops.add(out, x, adapters, table)
        return out

    with torch.inference_mode(), Recording(LIBRARY) as recording:
        out = call()
    program = Program(LIBRARY, recording, [], out)
    assert torch.equal(program.run([]), out)
    adapters.copy_(torch.tensor([-1, 0, 1]))
    x.copy_(torch.randn(3, 40))
    table.put(1, layers[2])
    assert torch.equal(program.run([]), call())


def test_large_steps_are_bitwise_invariant_to_threads(vector_isa: str) -> None:
    assert LIBRARY is not None
    ops = LowRankOps(LIBRARY)
    table = LowRankTable(2)
    for number in range(2):
        table.put(
            number, packed(ops, parts_of(700, (1000,), 16, torch.bfloat16), None, torch.bfloat16)
        )
    x = random(200, 700, dtype=torch.bfloat16)
    adapters = torch.arange(200, dtype=torch.int32) % 2
    out = torch.zeros(200, 1001, dtype=torch.bfloat16)
    ops.add(out, x, adapters, table)
    for first, last in ((0, 1), (90, 97)):
        own = torch.zeros(last - first, 1001, dtype=torch.bfloat16)
        ops.add(own, x[first:last], adapters[first:last].clone(), table)
        assert torch.equal(own, out[first:last])
