"""What adapters of low rank add through Triton: right by the plain products, whatever ranks and
company, and found again.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from core_kernels.low_rank import LowRankFactors, LowRankParts
from core_kernels.triton.low_rank import INITIAL_ROWS, LowRankOps, LowRankTable

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
NUM_ADAPTERS = 4
MAX_RANK = 40


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


def filled(ops: LowRankOps, layers: dict[int, LowRankParts]) -> LowRankTable:
    table = ops.table(NUM_ADAPTERS, 3)
    for number, layer in zip(layers, ops.pack(list(layers.values())), strict=True):
        table.put(number, layer)
    return table


def expected(
    out: torch.Tensor, x: torch.Tensor, adapters: list[int], layers: dict[int, LowRankParts]
) -> torch.Tensor:
    result = out.double()
    for row, number in enumerate(adapters):
        layer = layers.get(number, LowRankParts([], None))
        for part in layer.parts:
            columns = slice(part.first, part.first + len(part.b))
            result[row, columns] += (x[row].double() @ part.a.double().T) @ part.b.double().T
        if layer.bias is not None:
            result[row] += layer.bias.double()
    return result


def check(
    width: int,
    columns: tuple[int, ...],
    ranks: tuple[int, int],
    counts: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    ops = LowRankOps("cpu", dtype, MAX_RANK)
    size = sum(columns) + len(columns)
    layers = {
        0: LowRankParts(parts_of(width, columns, ranks[0], dtype), None),
        1: LowRankParts(parts_of(width, columns[:1], ranks[1], dtype), random(size, dtype=dtype)),
        2: LowRankParts([], random(size, dtype=dtype)),
    }
    table = filled(ops, layers)
    rows = ops.rows(NUM_ADAPTERS)
    for count in counts:
        adapters = torch.randint(-1, NUM_ADAPTERS, (count,), dtype=torch.int32)
        x = random(count, width + 3, dtype=dtype)[:, :width]
        before = random(count, size + 5, dtype=dtype)
        after = before.clone()
        rows.set_adapters(adapters.numpy())
        ops.add(after[:, :size], x, rows.select(None), table)
        reference = expected(before[:, :size], x, adapters.tolist(), layers)
        assert torch.equal(after[:, size:], before[:, size:])
        torch.testing.assert_close(
            after[:, :size].double(), reference, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
        )


@pytest.mark.parametrize(
    ("width", "columns", "ranks", "counts", "dtype"),
    [
        (1, (1,), (1, 2), (0, 1), torch.float32),
        (130, (5, 70, 3), (3, 17), (5, 21), torch.float32),
        (130, (5, 70, 3), (3, 17), (5,), torch.bfloat16),
        (1100, (33,), (8, 40), (2,), torch.float32),
    ],
)
def test_each_row_gets_its_adapters_delta(
    width: int,
    columns: tuple[int, ...],
    ranks: tuple[int, int],
    counts: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    check(width, columns, ranks, counts, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_real_model_shapes(dtype: torch.dtype) -> None:
    check(4096, (4096, 1024, 1024), (16, 32), (1, 7, 300), dtype)


def test_selected_rows_and_other_adapter_dtype() -> None:
    ops = LowRankOps("cpu", torch.bfloat16, MAX_RANK)
    layers = {
        number: LowRankParts(parts_of(9, (12,), 2, torch.bfloat16), None) for number in (0, 3)
    }
    table = filled(ops, layers)
    rows = ops.rows(NUM_ADAPTERS)
    numbers = [3, 0, -1, 3, 0]
    rows.set_adapters(np.array(numbers, dtype=np.int32))
    choices: list[torch.Tensor | slice] = [torch.tensor([4, 2, 0]), slice(1, 4), slice(0, 0)]
    for chosen in choices:
        x = torch.randn(5, 9)[chosen]
        out = torch.zeros(len(x), 13)
        ops.add(out, x, rows.select(chosen), table)
        own = torch.tensor(numbers)[chosen].tolist()
        torch.testing.assert_close(
            out.double(), expected(torch.zeros(len(x), 13), x, own, layers), atol=2e-2, rtol=2e-2
        )


def test_step_buffers_keep_their_address_until_they_grow() -> None:
    ops = LowRankOps("cpu", torch.float32, MAX_RANK)
    layers = {
        number: LowRankParts(parts_of(8, (8,), 2, torch.float32), None) for number in range(2)
    }
    table = filled(ops, layers)
    rows = ops.rows(NUM_ADAPTERS)
    rows.set_adapters(np.array([0, 1, -1], dtype=np.int32))
    read = rows.select(None)
    rows.set_adapters(np.array([-1, 0, 0], dtype=np.int32))
    table.put(0, ops.pack([layers[1]])[0])
    table.put(1, None)
    x = torch.randn(3, 8)
    out = torch.zeros(3, 9)
    ops.add(out, x, read, table)
    torch.testing.assert_close(
        out.double(), expected(torch.zeros(3, 9), x, [-1, 1, 1], layers), atol=1e-5, rtol=1e-5
    )
    assert rows.moves == 0
    rows.set_adapters(np.full(INITIAL_ROWS + 1, -1, dtype=np.int32))
    assert rows.moves == 1
    out.zero_()
    rows.set_adapters(np.array([1, 1, 3], dtype=np.int32))
    ops.add(out, x, rows.select(None), table)
    assert not out.any(), "adapters that have left add nothing"
