"""Selection of tokens by index keys, and copies of latents: as in plain torch, on each instruction
set.
"""

from __future__ import annotations

import pytest
import torch
from core_kernels.library import load_library
from core_kernels.selection import SelectionOps

from builtin_plugins.attention_backends.paged.backend import make_backend
from core.api.models import AttentionInputs
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import LatentKeys
from core.models.ops import reference

LIBRARY = load_library()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NO_NUMBER = float("nan")

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ library on this machine")


class Case:
    """Queries and index keys of one sequence. Small integers: sums are exact, many are equal."""

    def __init__(
        self, dtype: torch.dtype, sizes: tuple[int, int, int], block_size: int, length: int
    ) -> None:
        queries, heads, size = sizes
        num_blocks = -(-length // block_size) + 2
        self.query = torch.randint(-3, 4, sizes).to(dtype)
        self.weights = torch.randint(-2, 3, (queries, heads)).float()
        rows = torch.randint(-3, 4, (num_blocks, block_size, size + 6)).to(dtype)
        self.keys = rows[..., 6:]  # as in a cache with further numbers in its rows
        self.table = torch.randperm(num_blocks)[: num_blocks - 2].int()
        self.seen = torch.arange(length - queries + 1, length + 1)

    def expected(self, count: int) -> torch.Tensor:
        """Return the selection of the reference."""
        inputs = (self.query, self.weights, self.keys, self.table, self.seen)
        return reference.select_tokens(*inputs, count)

    def found(self, count: int, some: slice = slice(None)) -> torch.Tensor:
        """Return the selection of the library, for some of the queries."""
        assert LIBRARY is not None
        found = SelectionOps(LIBRARY).select(
            self.query[some], self.weights[some], self.keys, self.table, self.seen[some], count
        )
        assert found is not None
        return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 3, 4, 9])
@pytest.mark.parametrize("size", [2, 16, 30, 128])
def test_selection_matches_reference(
    vector_isa: str, dtype: torch.dtype, heads: int, size: int
) -> None:
    for block_size, length, count in ((1, 20, 7), (16, 64, 63), (5, 65, 1), (16, 300, 128)):
        case = Case(dtype, (5, heads, size), block_size, length)
        assert torch.equal(case.found(count), case.expected(count))


def test_queries_that_see_few_keys_get_the_first_positions(vector_isa: str) -> None:
    case = Case(torch.float32, (4, 2, 8), 4, 12)
    case.seen = torch.tensor([1, 7, 8, 12])
    found = case.found(8)
    assert torch.equal(found, case.expected(8))
    assert found[0].tolist() == list(range(8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_query_is_selected_for_alike_in_any_batch(vector_isa: str, dtype: torch.dtype) -> None:
    case = Case(dtype, (70, 6, 32), 16, 500)
    case.query = torch.randn(70, 6, 32).to(dtype)
    case.weights = torch.randn(70, 6)
    case.keys = torch.randn(case.keys.shape).to(dtype)
    together = case.found(40)
    for at in (0, 31, 32, 69):
        assert torch.equal(together[at : at + 1], case.found(40, slice(at, at + 1)))
    assert torch.equal(together[20:50], case.found(40, slice(20, 50)))


def test_scores_that_are_no_numbers_are_selected_last(vector_isa: str) -> None:
    case = Case(torch.float32, (1, 2, 8), 4, 40)
    flat = case.keys.reshape(-1, 8).clone()
    slots = case.table.long()[torch.arange(40) // 4] * 4 + torch.arange(40) % 4
    flat[slots[3]] = flat[slots[37]] = NO_NUMBER
    case.keys = flat.view(-1, 4, 8)
    found = case.found(38)[0].tolist()
    assert found == [at for at in range(40) if at not in (3, 37)]
    assert case.found(39)[0].tolist() == [at for at in range(40) if at != 37]


def test_unsupported_inputs_are_left_to_the_reference() -> None:
    assert LIBRARY is not None
    case = Case(torch.bfloat16, (2, 2, 8), 4, 12)
    inputs = (case.weights, case.keys, case.table, case.seen, 4)
    assert SelectionOps(LIBRARY).select(case.query.float(), *inputs) is None
    odd = (case.weights, case.keys[..., :7], case.table, case.seen, 4)
    assert SelectionOps(LIBRARY).select(case.query[..., :7], *odd) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [16, 48])
@pytest.mark.parametrize("count", [1, 16, 37])
def test_copied_latents_are_those_that_the_backend_wrote(
    vector_isa: str, dtype: torch.dtype, block_size: int, count: int
) -> None:
    size = 48
    length = 100
    backend = make_backend()
    params = AttentionParams(2, 1, size, 0.2, value_size=32)
    spec = LatentKeys(1, size, str(dtype).removeprefix("torch."))
    num_blocks = -(-length // block_size)
    table = torch.randperm(num_blocks).int()
    slots = table.long()[torch.arange(length) // block_size] * block_size
    slots += torch.arange(length) % block_size
    cache = torch.empty(backend.cache_shape(spec, num_blocks, block_size), dtype=dtype)
    keys = torch.randn(length, 1, size).to(dtype)
    inputs = AttentionInputs([0], [], table[None, :0], slots, block_size, spec)
    plan = backend.prepare(inputs)
    query = keys.new_empty(0, 2, size)
    backend.attend(params, query, keys, keys[..., :32], cache, plan)
    positions = torch.randperm(length)[:count].sort().values.int()
    copied = torch.full(backend.cache_shape(spec, 1, 48), NO_NUMBER, dtype=dtype)
    assert backend.copy_latents(cache, table, positions, copied)  # type: ignore[attr-defined]
    found = backend.read_kv(params, copied, torch.arange(count), dtype)  # type: ignore[attr-defined]
    assert torch.equal(found[:, 0], keys[positions.long()])
