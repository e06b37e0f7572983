"""What every attention backend must hold to: dense attention's answers, and no look at what may not
be seen.

Each check runs the variants the entry's `when` allows, on the CPU; a backend for another device
alone is not run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import torch

from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import FullAttention, LatentKeys
from core.plugin.entry import construct
from core.plugin.facts import why_not
from core.testing.attention_oracle import CrossSequences, PagedSequences
from core.testing.no_readback import no_readback

if TYPE_CHECKING:
    from core.contracts.attention import AttentionBackend
    from core.testing.conformance import Subject

_TOLERANCE: Final = {"float32": 1e-5, "bfloat16": 3e-2}
_HEAD_SIZES: Final = (16, 64)
_REACHES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"window": 5},
    {"window": 40},
    {"chunk": 16},
    {"softcap": 2.0},
    {"softcap": 2.0, "window": 7},
    {"alibi": torch.tensor([0.5, 0.25, 0.1, 0.02])},
    {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0]), "window": 7},
    {"distance_bias": torch.linspace(-2.0, 2.0, 4 * 21).view(4, 21)},
    {"value_size": 12},
)
_FACTS: Final = ("window", "chunk", "softcap", "alibi", "sinks", "distance_bias", "cross")
_BLOCK_SIZES: Final = (1, 4, 16)
_STEPS: Final = (
    {0: 1, 1: 15, 2: 16, 3: 17, 4: 33},
    {0: 1, 1: 1, 2: 1, 3: 1, 4: 1},
    {3: 1, 5: 20, 0: 1, 4: 9, 1: 2},
    {4: 1, 5: 1},
)
"""Tokens per sequence: prompts, decoding, then chunks and decoding mixed."""
_SPANS: Final[tuple[tuple[dict[int, int], dict[int, tuple[int, int]]], ...]] = (
    ({0: 1, 1: 15, 4: 33}, {1: (3, 9), 4: (0, 33)}),
    ({0: 1, 1: 20, 4: 1}, {1: (12, 31)}),
    ({1: 1, 0: 8}, {0: (2, 10)}),
)
"""Tokens per sequence, and a span that the step computes the end of; a part may be cached."""


def check_graph_support_is_stated(subject: Subject) -> None:
    """It decides which steps may be captured."""
    stated = _make(subject).graph_support
    assert stated in ("none", "decode", "full"), (
        f"graph_support is {stated!r}; say none, decode or full."
    )


def check_cache_takes_the_bytes_of_its_spec(subject: Subject) -> None:
    """Memory is divided by the spec; the shape says only how a block is laid out."""
    specs = [FullAttention(2, 64, "bfloat16")]
    if why_not(subject.entry, _facts({"value_size": 48}, "bfloat16", 64)) is None:
        specs.append(LatentKeys(1, 64, "bfloat16"))
    for block_size, spec in itertools.product(_BLOCK_SIZES, specs):
        shape = _make(subject).cache_shape(spec, 10, block_size)
        expected = 10 * block_size * spec.token_bytes // 2
        assert math.prod(shape) == expected, (
            f"cache_shape gave {shape}, which has not {expected} elements."
        )
        assert shape[0] == 10, (
            f"cache_shape gave {shape}; blocks must come first: groups share memory block by block."
        )


def check_equals_dense_attention(subject: Subject) -> None:
    """Prompts, chunks and decoding, mixed in a step; unused slots of cache and block table hold
    NaN.
    """
    for dtype, params in _variants(subject):
        for block_size in _BLOCK_SIZES:
            sequences = _sequences(subject, params, dtype, block_size)
            for counts in _STEPS:
                got, truth = sequences.step(counts)
                where = (
                    f"{subject.entry.name} with {params} in {dtype}, blocks of {block_size}, "
                    f"tokens {counts}"
                )
                _assert_close(where, got, truth, _TOLERANCE[dtype])


def check_writes_a_key_to_several_slots_if_declared(subject: Subject) -> None:
    """Sequences may fork after a token that is computed once; each has its key in its own
    blocks.
    """
    if not getattr(_make(subject), "slot_tokens", False):
        return
    for dtype, params in _variants(subject):
        for block_size in _BLOCK_SIZES:
            sequences = _sequences(subject, params, dtype, block_size)
            sequences.step({0: 1, 2: 15, 4: 33})
            for first in (0, 2, 4):
                got, truth = sequences.branch(first, first + 1)
                where = (
                    f"{subject.entry.name} with {params} in {dtype}, blocks of {block_size}, "
                    "a "
                    "key in two slots"
                )
                _assert_close(where, got, truth, _TOLERANCE[dtype])


def check_tokens_of_a_span_see_ahead(subject: Subject) -> None:
    """The tokens of an image see all of it, inside their window."""
    if not hasattr(_make(subject), "look_ahead"):
        return
    for dtype, params in _variants(subject):
        if params.chunk is not None:
            continue
        for block_size in _BLOCK_SIZES:
            sequences = _sequences(subject, params, dtype, block_size)
            where = f"{subject.entry.name} with {params} in {dtype}, blocks of {block_size}, spans"
            for counts, spans in _SPANS:
                got, truth = sequences.step(counts, spans)
                _assert_close(where, got, truth, _TOLERANCE[dtype])


def check_reads_the_vectors_of_slots(subject: Subject) -> None:
    """Sparse attention reads single slots, in any order; a slot may be read twice."""
    if not hasattr(_make(subject), "read_kv"):
        return
    for dtype, params in _variants(subject, reaches=({}, {"value_size": 12})):
        for block_size in _BLOCK_SIZES:
            backend: Any = _make(subject)
            sequences = _sequences(subject, params, dtype, block_size)
            inputs, query, key, value = sequences.tokens({0: 15, 4: 33})
            backend.attend(params, query, key, value, sequences.cache, backend.prepare(inputs))
            order = torch.randperm(48, generator=torch.Generator().manual_seed(0))[[*range(48), 0]]
            got = backend.read_kv(params, sequences.cache, inputs.slots[order], query.dtype)
            vectors = [key] if params.value_size is not None else [key, value]
            assert torch.equal(got, torch.stack(vectors, dim=1)[order]), (
                f"{subject.entry.name} with {params} in {dtype}, blocks of {block_size}: read_kv "
                "gave other vectors than were written."
            )


def check_sees_all_of_what_an_encoder_made(subject: Subject) -> None:
    """In a cross layer nothing is hidden; keys and values come once, in the step that encodes,
    apart from queries.
    """
    for dtype, params in _variants(subject, reaches=({"causal": False},)):
        for block_size in _BLOCK_SIZES:
            kind = getattr(torch, dtype)
            sequences = CrossSequences(
                _make(subject), params, [1, 16, 17, 70], block_size=block_size, dtype=kind
            )
            for counts in ({0: 3, 1: 1, 3: 20}, {3: 1, 0: 1, 1: 1}, {1: 1, 2: 1, 0: 30}):
                got, truth = sequences.step(counts)
                where = (
                    f"{subject.entry.name}, a cross layer in {dtype}, blocks of {block_size}, "
                    f"tokens {counts}"
                )
                _assert_close(where, got, truth, _TOLERANCE[dtype])


def check_query_heads_share_keys(subject: Subject) -> None:
    """One key-value head serves its group of query heads, in order."""
    for dtype, params in _variants(subject, reaches=({},)):
        for heads, kv_heads in ((1, 1), (4, 4), (4, 1), (6, 2)):
            grouped = AttentionParams(heads, kv_heads, params.head_size, params.scale)
            sequences = _sequences(subject, grouped, dtype, 16)
            for counts in ({0: 9, 1: 18}, {0: 1, 1: 1}, {0: 3, 1: 1}):
                got, truth = sequences.step(counts)
                _assert_close(
                    f"{subject.entry.name} with {heads}/{kv_heads} heads",
                    got,
                    truth,
                    _TOLERANCE[dtype],
                )


def check_nothing_is_read_back(subject: Subject) -> None:
    """Lengths are given on the host, so that a step need not wait for its device."""
    for dtype, params in _variants(subject):
        backend = _make(subject)
        sequences = _sequences(subject, params, dtype, 4)
        for counts in _STEPS:
            inputs, query, key, value = sequences.tokens(counts)
            with no_readback():
                backend.attend(params, query, key, value, sequences.cache, backend.prepare(inputs))


def check_static_plans_take_later_steps(subject: Subject) -> None:
    """What a graph was recorded with is another step's, once that was taken."""
    if _make(subject).graph_support == "none":
        return
    for dtype, params in _variants(subject, reaches=({}, {"window": 5})):
        backend = _make(subject)
        sequences = _sequences(subject, params, dtype, 4)
        for counts in ({0: 9, 1: 30}, {0: 1, 1: 1}):
            sequences.step(counts)
        inputs, query, key, value = sequences.tokens({0: 1, 1: 1})
        static = backend.prepare(inputs).to_static(64)
        backend.attend(params, query, key, value, sequences.cache, static)
        for _ in range(2):
            inputs, query, key, value = sequences.tokens({0: 1, 1: 1})
            plan = backend.prepare(inputs)
            expected = backend.attend(params, query, key, value, sequences.cache, plan)
            static.copy_from(plan)
            found = backend.attend(params, query, key, value, sequences.cache, static)
            assert torch.equal(found, expected), (
                f"{subject.entry.name}: copy_from(plan) does not copy all of a step."
            )
        if backend.graph_support == "full":
            _check_any(subject, backend, params, sequences)


def _check_any(
    subject: Subject, backend: Any, params: AttentionParams, sequences: PagedSequences
) -> None:
    """A static plan takes every step with the same number of tokens."""
    inputs, query, key, value = sequences.tokens({0: 5, 1: 1})
    static = backend.prepare(inputs).to_static_for_any(64)
    backend.attend(params, query, key, value, sequences.cache, static)
    steps: tuple[dict[int, int], ...] = (
        {1: 6},
        {2: 1, 0: 2, 1: 3},
        {3: 5, 0: 1},
        {0: 1, 1: 1, 2: 4},
    )
    for counts in steps:
        inputs, query, key, value = sequences.tokens(counts)
        plan = backend.prepare(inputs)
        expected = backend.attend(params, query, key, value, sequences.cache, plan)
        static.copy_from(plan)
        found = backend.attend(params, query, key, value, sequences.cache, static)
        wrong = f"{subject.entry.name}: a static plan gives another result for {counts}."
        torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2, msg=wrong)


def check_keeps_its_inputs(subject: Subject) -> None:
    """Queries, keys and values may be parts of a larger tensor that is read again."""
    for dtype, params in _variants(subject, reaches=({},)):
        backend = _make(subject)
        sequences = _sequences(subject, params, dtype, 16)
        inputs, query, key, value = sequences.tokens({0: 5, 1: 1})
        before = [tensor.clone() for tensor in (query, key, value)]
        out = backend.attend(params, query, key, value, sequences.cache, backend.prepare(inputs))
        same = all(torch.equal(*pair) for pair in zip(before, (query, key, value), strict=True))
        assert same, f"{subject.entry.name}: attend changed query, key or value."
        assert (out.shape, out.dtype) == (query.shape, query.dtype), (
            f"{subject.entry.name}: attend must answer like query."
        )


def _make(subject: Subject) -> AttentionBackend:
    made: AttentionBackend = construct(subject.target, subject.config)
    return made


def _variants(
    subject: Subject, reaches: tuple[dict[str, Any], ...] = _REACHES
) -> Iterator[tuple[str, AttentionParams]]:
    """Yield (dtype, parameters) for what the entry says it can do."""
    for dtype in _TOLERANCE:
        for reach in reaches:
            for head_size in _HEAD_SIZES:
                if why_not(subject.entry, _facts(reach, dtype, head_size)) is None:
                    yield dtype, AttentionParams(4, 2, head_size, head_size**-0.5, **reach)
                    break


def _facts(reach: dict[str, Any], dtype: str, head_size: int) -> dict[str, Any]:
    """Return what a backend must be able to do."""
    stated = {name: reach.get(name) is not None for name in _FACTS}
    return {
        **stated,
        "latent": "value_size" in reach,
        "sparse": False,
        "device": "cpu",
        "dtype": dtype,
        "head_size": head_size,
        "isa": "none",
    }


def _sequences(
    subject: Subject, params: AttentionParams, dtype: str, block_size: int
) -> PagedSequences:
    return PagedSequences(
        _make(subject),
        params,
        block_size=block_size,
        num_sequences=6,
        max_len=64,
        dtype=getattr(torch, dtype),
    )


def _assert_close(where: str, got: torch.Tensor, truth: torch.Tensor, tolerance: float) -> None:
    def named(text: str) -> str:
        return f"{where}: {text}"

    torch.testing.assert_close(got.double(), truth, atol=tolerance, rtol=tolerance, msg=named)
