"""Sparse attention by Triton equals that of `IndexPlan` and `SparsePlan`, in the interpreter."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from core_kernels.triton.attention_shapes import Step
from core_kernels.triton.decode_plan import plan_decode
from core_kernels.triton.sparse_attention import plan_tokens

from builtin_plugins.attention_backends.reference.backend import ReferenceAttention
from builtin_plugins.attention_backends.triton.backend import TritonAttention
from builtin_plugins.attention_backends.triton.kernel_layer import kernel_layer
from builtin_plugins.attention_backends.triton.sparse import Selection
from core import LLM, SamplingParams
from core.contracts.attention import AttentionInputs
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import IndexKeys, LatentKeys
from core.models.layers.sparse_attention import IndexPlan, SparsePlan
from core.models.ops.selection import select_tokens
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.platforms.fake_gpu import NO_CPU, FakeGpu
from tests.builtin_plugins.platforms.test_gpu_platform import FAKE

SLOW = pytest.mark.slow
TOP_K = 8
SIZE = 6
HEADS = 3
PARAMS = AttentionParams(5, 1, 24, 0.25, value_size=16)
STEPS = (
    ({0: 5, 1: 8, 2: 9, 3: 30}, {0: 5, 1: 8, 2: 9, 3: 30}),
    ({0: 1, 1: 1, 2: 1, 3: 1}, {0: 3, 1: 9, 2: 31, 3: 8}),
    ({2: 1, 0: 12, 3: 4}, {2: 9, 0: 12, 3: 40}),
    ({0: 1, 1: 1}, {0: 100, 1: 60}),
)
"""Tokens of the step and lengths by sequence: on both sides of `TOP_K`."""


def inputs_of(
    counts: dict[int, int], lengths: dict[int, int], block_size: int, spec: Any
) -> AttentionInputs:
    """Return a step of sequences with blocks dealt at random."""
    generator = torch.Generator().manual_seed(block_size)
    per_sequence = -(-128 // block_size)
    tables = torch.randperm(4 * per_sequence, generator=generator).view(4, -1)
    slots = []
    for sequence, count in counts.items():
        for position in range(lengths[sequence] - count, lengths[sequence]):
            block = int(tables[sequence, position // block_size])
            slots.append(block * block_size + position % block_size)
    return AttentionInputs(
        query_starts=[0, *accumulate(counts.values())],
        kv_lens=[lengths[sequence] for sequence in counts],
        block_table=tables[list(counts)].int(),
        slots=torch.tensor(slots),
        block_size=block_size,
        spec=spec,
    )


def of_long(found: torch.Tensor, inputs: AttentionInputs) -> list[list[int]]:
    """Return the positions of tokens that see more than `TOP_K`; those of others are all."""
    rows = []
    for sequence, length in enumerate(inputs.kv_lens):
        begin, end = inputs.query_starts[sequence : sequence + 2]
        for token in range(begin, end):
            seen = length - (end - token - 1)
            if seen > TOP_K:
                rows.append(found[token].tolist())
            else:
                assert found[token, :seen].tolist() == [*range(seen)]
    return rows


@pytest.mark.parametrize("block_size", [1, pytest.param(16, marks=SLOW)])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=SLOW)])
def test_selection_equals_the_reference(
    step: tuple[dict[int, int], dict[int, int]], block_size: int, dtype: torch.dtype
) -> None:
    inputs = inputs_of(*step, block_size, IndexKeys(1, SIZE, "float32", top_k=TOP_K))
    generator = torch.Generator().manual_seed(0)
    count = inputs.query_starts[-1]
    # Few values, so that sums are exact and many scores are equal.
    query = torch.randint(-2, 3, (count, HEADS, SIZE + 2), generator=generator).to(dtype)
    weights = torch.randint(-2, 3, (count, HEADS), generator=generator).float()
    key = torch.randint(-2, 3, (count, SIZE), generator=generator).to(dtype)
    shape = (4 * 128 // block_size, block_size, SIZE)
    caches = [torch.randint(-2, 3, shape, generator=generator).to(dtype)]
    caches.append(caches[0].clone())
    reference = IndexPlan(select_tokens, inputs, TOP_K)
    expected = reference.select(query[..., :SIZE], weights, key, caches[0])
    plan = TritonAttention().prepare_index(inputs, TOP_K)
    found = plan.select(query[..., :SIZE], weights, key, caches[1])
    assert torch.equal(*caches)
    assert found is not None
    assert expected is not None
    assert of_long(found.positions, inputs) == expected.tolist()


def test_scores_are_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core_kernels.triton.sparse_attention.MAX_SCORES", 100)
    test_selection_equals_the_reference(STEPS[2], 16, torch.float32)


def test_short_sequences_select_nothing() -> None:
    spec = IndexKeys(1, SIZE, "float32", top_k=TOP_K)
    plan = TritonAttention().prepare_index(inputs_of({0: 3}, {0: TOP_K}, 4, spec), TOP_K)
    cache = torch.zeros(128, 4, SIZE)
    query = torch.zeros(3, HEADS, SIZE)
    weights = torch.zeros(3, HEADS)
    assert plan.select(query, weights, torch.ones(3, SIZE), cache) is None
    assert cache.sum() == 3 * SIZE


@pytest.mark.parametrize("lengths", [[3, 200, 0, 90], [70]])
def test_tokens_are_planned_and_split_in_one_launch(lengths: list[int]) -> None:
    """The last token is padding, of a sequence without tokens."""
    count = len(lengths) + 1
    starts = torch.tensor([*range(count), count], dtype=torch.int32)
    lengths_on_device = torch.tensor([*lengths, 0])
    table = torch.zeros(count, 1, dtype=torch.int32)
    step = Step(starts, lengths_on_device, table, 16, count)
    plan = plan_tokens(step, 100, programs=count + 3)
    assert plan.owners.tolist() == [*range(count)]
    assert plan.lengths.tolist() == [*(min(length, 100) for length in lengths), 0]
    expected = plan_decode(plan.starts, plan.lengths, kernel_layer(PARAMS))
    assert plan.decode is not None
    assert torch.equal(plan.decode.pieces, expected.pieces)
    assert plan.decode.arrivals.tolist() == [0] * (count + 3)
    assert plan_tokens(step, 100, programs=count).decode is None


@pytest.mark.parametrize("count", [1, 3, 130])
def test_many_tokens_have_the_sequences_of_the_step(count: int) -> None:
    counts = [count, 1, 2 * count]
    starts = torch.tensor([0, *accumulate(counts)], dtype=torch.int32)
    total = sum(counts)
    lengths = torch.tensor([count, 7, 300])
    step = Step(starts, lengths, torch.zeros(3, 1, dtype=torch.int32), 16, total)
    plan = plan_tokens(step, 5, programs=total)
    owners = torch.arange(3).repeat_interleave(torch.tensor(counts))
    assert torch.equal(plan.owners, owners.int())
    ends = starts[1:][owners]
    assert torch.equal(plan.seen, (lengths[owners] - ends + torch.arange(total) + 1).int())
    assert torch.equal(plan.lengths, plan.seen.clamp(max=5).long())
    assert torch.equal(plan.starts, torch.arange(total + 1).int())


@pytest.mark.parametrize("programs", [1, 64])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=SLOW)])
def test_attention_to_selected_tokens_equals_the_reference(
    step: tuple[dict[int, int], dict[int, int]], programs: int, dtype: str
) -> None:
    """With few programs a token is one of them; with many its positions are split."""
    kind = getattr(torch, dtype)
    inputs = inputs_of(*step, 16, LatentKeys(1, 24, dtype, top_k=TOP_K))
    generator = torch.Generator().manual_seed(0)
    count = inputs.query_starts[-1]
    query = torch.randn(count, 5, 24, generator=generator).to(kind)
    key = torch.randn(count, 1, 24, generator=generator).to(kind)
    old = torch.randn(32, 1, 16, 1, 24, generator=generator).to(kind)
    rows = []
    long_rows = []
    for sequence, length in enumerate(inputs.kv_lens):
        begin, end = inputs.query_starts[sequence : sequence + 2]
        for token in range(begin, end):
            seen = length - (end - token - 1)
            chosen = torch.randperm(seen, generator=generator)[:TOP_K].sort().values
            rows.append(torch.nn.functional.pad(chosen, (0, TOP_K - len(chosen)), value=1 << 20))
            long_rows += [rows[-1]] if seen > TOP_K else []
    backend = TritonAttention()
    backend._programs = programs
    cache = old.clone()
    plan = backend.prepare_sparse(inputs, TOP_K)
    tokens = plan_tokens(plan.plan.step, TOP_K, programs)
    found = plan.attend(PARAMS, query, key, cache, Selection(torch.stack(rows).int(), tokens))
    reference = ReferenceAttention()
    other = torch.zeros(reference.cache_shape(inputs.spec, 32, 16), dtype=kind)
    other.view(-1).copy_(old.view(-1))
    expected = SparsePlan(reference, inputs, TOP_K).attend(
        PARAMS, query, key, other, torch.stack(long_rows)
    )
    assert torch.equal(cache.view(-1), other.view(-1))
    tolerance = 1e-5 if kind is torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    whole = plan.attend(PARAMS, query, key, cache, None)
    own = reference.attend(PARAMS, query, key, key[..., :16], other, reference.prepare(inputs))
    torch.testing.assert_close(whole, own, atol=tolerance, rtol=tolerance)


@SLOW
@pytest.mark.parametrize("architecture", ["DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"])
def test_captured_steps_equal_those_of_a_cpu(architecture: str, tmp_path: Path) -> None:
    folder = make_checkpoint(architecture, tmp_path / "model", seed=1)
    sampling = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    prompts = [{"prompt_token_ids": [*range(2, 2 + length)]} for length in (25, 18, 3)]

    def tokens(**settings: Any) -> list[list[int]]:
        sizes = {"max_num_seqs": 3, "max_model_len": 40, "num_gpu_blocks_override": 24}
        with LLM(
            str(folder), dtype="float32", skip_tokenizer_init=True, **sizes, **settings
        ) as llm:
            found = llm.generate(prompts, sampling, use_tqdm=False)
        return [list(out.outputs[0].token_ids) for out in found]

    expected = tokens(device="cpu", enforce_eager=True)
    on_device = {"device": "fake", "plugins": [FAKE, *NO_CPU, "no:ops_triton"]}
    assert tokens(**on_device) == expected
    assert FakeGpu.recorder.replays
