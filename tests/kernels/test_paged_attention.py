"""Paged attention in C++: results are bitwise invariant to shared prefixes,
on any instruction set.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from core_kernels.attention import AttentionStep
from core_kernels.library import load_library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builtin_plugins.attention_backends.paged.backend import PagedAttention
from core.model_spec.attention_params import AttentionParams
from core.testing.attention_oracle import PagedSequences

LIBRARY = load_library()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
MAX_TOKENS = 60

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C++ library on this machine")


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """Give the library back its threads."""
    yield
    if LIBRARY is not None:
        LIBRARY.core_kernels_threads(torch.get_num_threads())


@dataclass(frozen=True)
class Sequence:
    """A sequence in a step: so many keys, the last so many tokens of which are computed now."""

    length: int
    tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """What is the same for all sequences of a step."""

    kv_heads: int
    group: int
    head_size: int
    block: int
    dtype: torch.dtype
    value_size: int | None = None


class Step:
    """Sequences over a cache of random numbers, whatever lies where."""

    def __init__(
        self, shape: Shape, sequences: list[Sequence], num_blocks: int, seed: int = 0
    ) -> None:
        self.shape = shape
        self.sequences = sequences
        numbers = torch.Generator().manual_seed(seed)

        def draw(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=numbers).to(shape.dtype)

        tokens = sum(sequence.tokens for sequence in sequences)
        vectors = 1 if shape.value_size else 2
        self.cache = draw(num_blocks, shape.kv_heads, vectors, shape.block, shape.head_size)
        self.query = draw(tokens, shape.kv_heads * shape.group, shape.head_size)
        self.key, self.value = (draw(tokens, shape.kv_heads, shape.head_size) for _ in range(2))

    def attend(self, first: int, end: int, **layer: Any) -> torch.Tensor:
        """Return attention of sequences [first, end), as a step of their own."""
        some = self.sequences[first:end]
        block = self.shape.block
        begin = sum(sequence.tokens for sequence in self.sequences[:first])
        starts = [0]
        for sequence in some:
            starts.append(starts[-1] + sequence.tokens)
        positions = [(s, at) for s in some for at in range(s.length - s.tokens, s.length)]
        slots = [s.blocks[at // block] * block + at % block for s, at in positions]
        width = max(len(sequence.blocks) for sequence in some)
        tables = torch.tensor(
            [s.blocks + (0,) * (width - len(s.blocks)) for s in some], dtype=torch.int32
        )
        step = AttentionStep(
            LIBRARY, starts, [s.length for s in some], tables, torch.tensor(slots), block
        )
        own = slice(begin, begin + starts[-1])
        return step.attend(
            self.query[own],
            self.key[own],
            self.value[own],
            self.cache,
            scale=self.shape.head_size**-0.5,
            value_size=self.shape.value_size,
            **layer,
        )


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 2), (1, 7), (1, 50), (2, 3)]))
    head_size, value_size = draw(
        st.sampled_from([(16, None), (20, None), (80, None), (16, 16), (48, 20), (24, 7)])
    )
    block = draw(st.sampled_from([16, 16, 32, 1, 24]))
    return Shape(kv_heads, group, head_size, block, draw(st.sampled_from(DTYPES)), value_size)


@st.composite
def sharing_sequences(draw: st.DrawFn, block: int) -> tuple[list[Sequence], int]:
    """Draw sequences of which some go on where others have filled blocks; and how many blocks there
    are.
    """
    sequences: list[Sequence] = []
    used = 1
    for _ in range(draw(st.integers(2, 8))):
        tokens = draw(st.integers(1, MAX_TOKENS) | st.just(1))
        length = tokens + draw(st.integers(0, 300) | st.integers(900, 1200))
        other = sequences[draw(st.integers(0, len(sequences) - 1))] if sequences else None
        shared: tuple[int, ...] = ()
        if other is not None and draw(st.integers(0, 4)):
            # No sequence writes blocks of another one, but blocks filled in this step may be
            # read.
            limit = min(other.length, length - tokens) // block
            shared = other.blocks[: draw(st.just(limit) | st.integers(0, limit))]
        own = -(-length // block) - len(shared)
        sequences.append(Sequence(length, tokens, shared + tuple(range(used, used + own))))
        used += own
    return draw(st.permutations(sequences)), used


@st.composite
def layers(draw: st.DrawFn, heads: int) -> dict[str, Any]:
    found: dict[str, Any] = draw(
        st.sampled_from([{}, {}, {"window": 1}, {"window": 100}, {"window": 700}, {"chunk": 128}])
    )
    return found | draw(
        st.sampled_from(
            [
                {},
                {"softcap": 2.0},
                {"alibi": torch.linspace(0.5, 0.01, heads)},
                {"sinks": torch.linspace(-1.0, 2.0, heads)},
            ]
        )
    )


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), threads=st.sampled_from([1, 2, 5]))
def test_shared_prefix_attention_is_bitwise_batch_invariant(
    isa: str, data: st.DataObject, threads: int
) -> None:
    assert LIBRARY is not None
    shape = data.draw(shapes())
    sequences, num_blocks = data.draw(sharing_sequences(shape.block))
    layer = data.draw(layers(shape.kv_heads * shape.group))
    step = Step(shape, sequences, num_blocks)
    LIBRARY.core_kernels_threads(threads)
    together = step.attend(0, len(sequences), **layer)
    assert together.isfinite().all()
    LIBRARY.core_kernels_threads(1)
    at = 0
    for i, sequence in enumerate(sequences):
        alone = step.attend(i, i + 1, **layer)
        assert torch.equal(together[at : at + sequence.tokens], alone), f"sequence {i}"
        at += sequence.tokens


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layer", [{}, {"window": 2500}], ids=str)
def test_long_sequence_is_bitwise_invariant_to_threads(
    layer: dict[str, int], dtype: torch.dtype
) -> None:
    assert LIBRARY is not None
    blocks = tuple(random.Random(0).sample(range(1, 400), 320))
    long = Sequence(5100, 3, blocks)
    short = Sequence(40, 1, (400, 401, 402))
    step = Step(Shape(1, 4, 32, 16, dtype), [long, short], 403)
    found = []
    for threads in (1, 2, 3, 16):
        LIBRARY.core_kernels_threads(threads)
        found.append(step.attend(0, 2, **layer))
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_attention_step_reports_shared_prefixes() -> None:
    first = (4, 5, 6, 7)
    second = (9, 5, 6, 7)
    third = (4, 5, 8, 0)
    tables = torch.tensor([first, second, third], dtype=torch.int32)
    step = AttentionStep(LIBRARY, [0, 1, 2, 3], [60, 60, 40], tables, torch.tensor([0, 16, 32]), 16)
    assert step.order.tolist() == [0, 2, 1]
    assert step.shared.tolist() == [32, 0, 0]


def test_stale_block_table_entries_are_ignored() -> None:
    tables = torch.tensor([[4, 5, 6], [4, 5, 6]], dtype=torch.int32)
    step = AttentionStep(LIBRARY, [0, 1, 2], [48, 20], tables, torch.tensor([0, 16]), 16)
    assert step.order.tolist() == [1, 0]
    assert step.shared.tolist() == [32, 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "head_size", "value_size", "block"),
    [(16, 48, 32, 16), (3, 32, 17, 32), (50, 24, 20, 16), (5, 9, 4, 3)],
)
def test_latent_values_are_a_prefix_of_keys(
    isa: str, heads: int, head_size: int, value_size: int, block: int, dtype: torch.dtype
) -> None:
    params = AttentionParams(heads, 1, head_size, head_size**-0.5, value_size=value_size)
    assert LIBRARY is not None
    sequences = PagedSequences(
        PagedAttention(LIBRARY), params, block_size=block, num_sequences=3, max_len=100, dtype=dtype
    )
    for counts in ({0: 70, 1: 16, 2: 1}, {0: 1, 1: 1, 2: 1}, {2: 9, 0: 2}):
        got, truth = sequences.step(counts)
        assert got.shape == (sum(counts.values()), heads, value_size)
        torch.testing.assert_close(
            got.double(), truth, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reach", [{}, {"window": 30}, {"softcap": 2.0}], ids=str)
def test_unit_layout_of_keys_and_values(
    isa: str, reach: dict[str, Any], dtype: torch.dtype
) -> None:
    params = AttentionParams(4, 2, 48, 48**-0.5, **reach)
    assert LIBRARY is not None
    sequences = PagedSequences(
        PagedAttention(LIBRARY), params, num_sequences=3, max_len=120, dtype=dtype
    )
    for counts in ({0: 70, 1: 15, 2: 1}, {0: 1, 1: 2, 2: 33}, {2: 1, 0: 20, 1: 17}):
        got, truth = sequences.step(counts)
        torch.testing.assert_close(
            got.double(), truth, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
        )
