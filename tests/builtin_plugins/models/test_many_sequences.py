"""Models with plain rows compute several sequences in one step as they do each alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core.contracts.attention import AttentionInputs, ForwardBatch
from core.models.layers.compressed_attention import CompressedAttention
from core.models.layers.relative_attention import RelativeAttention
from core.models.layers.state import prepare
from core.models.ops.table import reference_ops
from core.testing.one_sequence import OneSequenceAttention

ARCHITECTURES = ["DeepseekV4ForCausalLM", "InklingForCausalLM", "Inkling2ForCausalLM"]
BLOCKS = 8
"""Blocks of a sequence."""
BLOCK_SIZE = 16
STEPS = [
    [(0, 50), (1, 3)],
    [(0, 1), (1, 5), (2, 30)],
    [(0, 1), (1, 1), (2, 1), (3, 1)],
    [(0, 7), (1, 6), (2, 1), (3, 9)],
    [(0, 1), (1, 1), (2, 1), (3, 1)],
]
"""Tokens of sequences in each step: prompts, chunks and single tokens."""


class Sequences:
    """Sequences of a decoder; its layers cache plain rows."""

    def __init__(self, decoder: Any, ids: Sequence[Sequence[int]]) -> None:
        self._decoder = decoder
        self._ids = ids
        self._specs = [layer.spec for layer in decoder.kv_layers]
        count = len(ids) * BLOCKS
        # What is not written is no number, so that reading it shows.
        decoder.bind_kv(
            [
                torch.full((count, self._block_size(s) // self._rate(s), s.head_size), torch.nan)
                for s in self._specs
            ]
        )
        order = torch.randperm(count, generator=torch.Generator().manual_seed(5))
        self._table = order.view(len(ids), BLOCKS).int()
        self._lengths = [0] * len(ids)
        self.found: list[list[torch.Tensor]] = [[] for _ in ids]
        """Log-probabilities of each sequence, by step."""

    @staticmethod
    def _rate(spec: Any) -> int:
        return int(getattr(spec, "rate", 1))

    @staticmethod
    def _block_size(spec: Any) -> int:
        return max(BLOCK_SIZE, getattr(spec, "block_size", None) or BLOCK_SIZE)

    def step(self, counts: Sequence[tuple[int, int]]) -> None:
        """Compute the next tokens of some sequences, given as (sequence, number of tokens)."""
        starts = [self._lengths[sequence] for sequence, _ in counts]
        spans = [(s, range(at, at + n)) for (s, n), at in zip(counts, starts, strict=True)]
        tokens = torch.tensor([self._ids[s][at] for s, span in spans for at in span])
        query_starts = [0]
        for sequence, count in counts:
            query_starts.append(query_starts[-1] + count)
            self._lengths[sequence] += count
        batch = ForwardBatch(
            input_ids=tokens,
            positions=torch.tensor([at for _, span in spans for at in span]),
            attention=[self._plan(spec, spans, query_starts) for spec in self._specs],
            rows=list(range(len(counts))),
            starts=starts,
            counts=[count for _, count in counts],
            prompt_lens=[count for _, count in counts],
            token_ids=tokens[None],
        )
        scores = self._decoder.logits(self._decoder(batch)).log_softmax(-1)
        for index, (sequence, _) in enumerate(counts):
            self.found[sequence].append(scores[query_starts[index] : query_starts[index + 1]])

    def _plan(self, spec: Any, spans: Sequence[tuple[int, range]], query_starts: list[int]) -> Any:
        size = self._block_size(spec)
        slots = [
            int(self._table[sequence, at // size]) * size + at % size
            for sequence, span in spans
            for at in span
        ]
        chosen = [sequence for sequence, _ in spans]
        inputs = AttentionInputs(
            query_starts,
            [span.stop for _, span in spans],
            self._table[chosen],
            torch.tensor(slots),
            size,
            spec,
        )
        return prepare(OneSequenceAttention(), reference_ops(), inputs)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.inference_mode()
def test_sequences_of_a_step_are_computed_as_each_alone(
    architecture: str, checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    decoder = load(architecture, checkpoint(architecture))
    draw = torch.Generator().manual_seed(2)
    ids = [torch.randint(0, 250, (60,), generator=draw).tolist() for _ in range(4)]
    together = Sequences(decoder, ids)
    for counts in STEPS:
        together.step(counts)
    for sequence, own in enumerate(together.found):
        alone = Sequences(decoder, ids[sequence : sequence + 1])
        for step in own:
            alone.step([(0, len(step))])
        torch.testing.assert_close(torch.cat(own), torch.cat(alone.found[0]), atol=5e-5, rtol=0)


class OperationCount(TorchDispatchMode):
    """Counts torch's operations within attention layers of plain rows."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.count = 0
        self._is_within = False
        for module in decoder.modules():
            if isinstance(module, (CompressedAttention, RelativeAttention)):
                module.register_forward_pre_hook(partial(self._set, True))
                module.register_forward_hook(partial(self._set, False))

    def _set(self, is_within: bool, *_: Any) -> None:
        self._is_within = is_within

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += self._is_within
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.inference_mode()
def test_more_sequences_need_no_more_operations(
    architecture: str, checkpoint: Callable[[str], Path], load: Callable[..., Any]
) -> None:
    """As long as nothing is selected: the op `select_tokens` takes one sequence."""
    counts = []
    for number in (4, 16):
        decoder = load(architecture, checkpoint(architecture))
        sequences = Sequences(decoder, [range(24)] * number)
        sequences.step([(index, 14 + index % 4) for index in range(number)])
        with OperationCount(decoder) as counter:
            sequences.step([(index, 1) for index in range(number)])
        counts.append(counter.count)
    assert 0 < counts[1] <= counts[0]
