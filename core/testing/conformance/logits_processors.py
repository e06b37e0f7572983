"""What every logits processor must hold to: rows are independent, state follows from tokens, nothing is read back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from core.contracts import SamplerContext, SampleRows
from core.testing.no_readback import no_readback
from core.types import SamplingParams

if TYPE_CHECKING:
    from core.contracts import LogitsProcessor
    from core.testing.conformance import Subject

_VOCAB: Final = 40
_CONTEXT: Final = SamplerContext(_VOCAB, 8, 32, "cpu")
_VALUES: Final[dict[str, Any]] = {
    "presence_penalty": 1.5,
    "frequency_penalty": 0.7,
    "repetition_penalty": 1.3,
    "min_p": 0.2,
    "min_tokens": 5,
    "logit_bias": {3: 4.0, 9: -7.5},
    "allowed_token_ids": [1, 3, 5, 9, 30],
    "bad_words": ["x"],
    "top_k": 5,
    "top_p": 0.5,
}
"""A value other than the default for fields a processor may serve."""


def check_params_are_sampling_parameters(subject: Subject) -> None:
    """`params` tells admission which request fields are served."""
    unknown = sorted(set(subject.target.params) - set(SamplingParams.__struct_fields__))
    assert not unknown, f"{subject.entry.name}: params names {unknown}, which are no fields of SamplingParams."


def check_argmax_invariant_is_stated(subject: Subject) -> None:
    """It decides at start-up whether greedy rows skip the processor."""
    stated = subject.target.argmax_invariant
    assert isinstance(stated, bool), f"{subject.entry.name}: argmax_invariant is {stated!r}; say True or False."


def check_default_requests_are_left_alone(subject: Subject) -> None:
    """A processor that serves request fields costs nothing where none of them is set."""
    if subject.target.params:
        wanted = _make(subject).wants(SamplingParams())
        assert not wanted, f"{subject.entry.name} wants a request that sets none of {subject.target.params}."


def check_apply_keeps_shape_and_dtype(subject: Subject) -> None:
    """Logits go in and come out as [n, vocab] float32."""
    for processor, sampling in _wanting(subject):
        logits, rows = _enter(processor, sampling, [2, 5, 0])
        given = tuple(logits.shape)
        out = processor.apply(logits, rows)
        assert tuple(out.shape) == given, f"{subject.entry.name}: apply made {tuple(out.shape)} of {given}."
        assert out.dtype == torch.float32, f"{subject.entry.name}: apply returned {out.dtype}; keep float32."


def check_apply_reads_nothing_back(subject: Subject) -> None:
    """A step must not wait for its device; keep what you need of the rows on the host when they are added."""
    for processor, sampling in _wanting(subject):
        logits, rows = _enter(processor, sampling, [4, 1])
        with no_readback():
            processor.apply(logits, rows)


def check_rows_do_not_depend_on_each_other(subject: Subject) -> None:
    """A row gets the same logits alone and among others, in whatever order."""
    for processor, sampling in _wanting(subject):
        order = [6, 0, 3]
        logits, rows = _enter(processor, sampling, order)
        alone = [
            processor.apply(logits[i : i + 1].clone(), _rows([row], rows.token_ids)) for i, row in enumerate(order)
        ]
        together = processor.apply(logits.clone(), rows)
        _assert_same(subject, together, torch.cat(alone), "a row's logits depend on the rows beside it")
        swapped = processor.apply(logits.flip(0), _rows(order[::-1], rows.token_ids))
        _assert_same(subject, swapped.flip(0), together, "a row's logits depend on the order of rows")


def check_state_follows_from_tokens(subject: Subject) -> None:
    """After preemption a row is added again with its tokens so far, perhaps elsewhere: the logits must not differ."""
    for processor, sampling in _wanting(subject):
        logits, rows = _enter(processor, sampling, [2])
        first = processor.apply(logits.clone(), rows)
        processor.removed(2)
        token_ids = rows.token_ids.roll(5, dims=0)  # row 7 holds what row 2 held
        for again in (processor, _make(subject)):
            length, prompt_len = _length(2), _prompt_len(2)
            again.added(7, sampling, token_ids[7, :length].tolist(), prompt_len)
            moved = SampleRows(
                [7], [prompt_len], [length], torch.tensor([7]), rows.length_index, rows.prompt_index, token_ids
            )
            _assert_same(subject, again.apply(logits.clone(), moved), first, "after removed and added logits differ")


def check_argmax_invariance_holds(subject: Subject) -> None:
    """Greedy rows skip an argmax-invariant processor, so it must never change which token is best."""
    if not subject.target.argmax_invariant:
        return
    for processor, sampling in _wanting(subject):
        logits, rows = _enter(processor, sampling, [0, 1, 2, 3])
        best = logits.argmax(dim=-1)
        kept = processor.apply(logits, rows).argmax(dim=-1)
        assert torch.equal(kept, best), f"{subject.entry.name}: the best token changed; state argmax_invariant = False."


def _make(subject: Subject) -> LogitsProcessor:
    made: LogitsProcessor = subject.target(_CONTEXT)
    return made


def _wanting(subject: Subject) -> Iterator[tuple[LogitsProcessor, SamplingParams]]:
    """Yield a fresh processor with parameters it wants, for each of its fields alone and for all of them."""
    known = {name: _VALUES[name] for name in subject.target.params if name in _VALUES}
    for values in [{name: value} for name, value in known.items()] + [known]:
        sampling = SamplingParams(stop_token_ids=[4, 11], bad_words_token_ids=[[8], [2, 3], [5, 6, 7]], **values)
        processor = _make(subject)
        if processor.wants(sampling):
            yield processor, sampling


def _enter(
    processor: LogitsProcessor, sampling: SamplingParams, order: Sequence[int]
) -> tuple[torch.Tensor, SampleRows]:
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(0, 10, (_CONTEXT.max_num_seqs, _CONTEXT.max_model_len), generator=generator)
    logits = torch.randn((len(order), _VOCAB), generator=generator) * 3
    for row in order:
        processor.added(row, sampling, token_ids[row, : _length(row)].tolist(), _prompt_len(row))
    return logits, _rows(order, token_ids)


def _rows(order: Sequence[int], token_ids: torch.Tensor) -> SampleRows:
    lengths, prompt_lens = [_length(row) for row in order], [_prompt_len(row) for row in order]
    index = torch.tensor([list(order), lengths, prompt_lens])
    return SampleRows(list(order), prompt_lens, lengths, index[0], index[1], index[2], token_ids)


def _length(row: int) -> int:
    return 3 + 4 * row


def _prompt_len(row: int) -> int:
    return 3 + row


def _assert_same(subject: Subject, found: torch.Tensor, expected: torch.Tensor, fault: str) -> None:
    torch.testing.assert_close(
        found, expected, rtol=1e-6, atol=1e-6, msg=lambda text: f"{subject.entry.name}: {fault}: {text}"
    )
