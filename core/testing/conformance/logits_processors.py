"""What every logits processor must pass.

Fields of `SamplingParams` are tried with values of ours. A processor that is enabled in another
way says how in its module: `EXAMPLE_PARAMS = {"extra_args": {...}}`, keywords of `SamplingParams`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from core.contracts.sampling import SamplerContext, SampleRows
from core.plugin.entry import construct
from core.testing.conformance.examples import examples
from core.testing.no_readback import ReadBack, no_readback
from core.types import SamplingParams

if TYPE_CHECKING:
    from core.testing.conformance import Subject

_CONTEXT: Final = SamplerContext(vocab_size=40, max_num_seqs=6, max_model_len=32, device="cpu")
_EXAMPLES: Final[dict[str, Any]] = {
    "presence_penalty": 0.7,
    "frequency_penalty": 0.4,
    "repetition_penalty": 1.3,
    "min_p": 0.3,
    "min_tokens": 6,
    "logit_bias": {3: 4.0, 9: -3.0},
    "allowed_token_ids": [2, 3, 5, 7, 11, 13, 17],
    "bad_words_token_ids": [[3], [5, 7], [5, 7, 3]],
}
_HISTORIES: Final = ([5, 3, 3], [7, 1, 5, 7, 5, 7], [2], [11, 5, 7, 3, 9, 9, 1])
_PROMPT_LENS: Final = (2, 3, 1, 4)


def check_states_its_fields(subject: Subject) -> None:
    """`params` names fields of `SamplingParams`: requests that set them are refused if nothing
    does.
    """
    params = subject.target.params
    assert isinstance(params, tuple), (
        f"{subject.entry.name}: params is {params!r}; give a tuple of field names."
    )
    unknown = [name for name in params if name not in SamplingParams.__struct_fields__]
    assert not unknown, (
        f"{subject.entry.name}: params names {unknown}, which SamplingParams has not."
    )


def check_says_whether_it_changes_the_best_token(subject: Subject) -> None:
    """The kernel decides by it where the processor runs."""
    invariant = subject.target.argmax_invariant
    assert isinstance(invariant, bool), (
        f"{subject.entry.name}: argmax_invariant is {invariant!r}; give True or False."
    )


def check_default_requests_do_without_it(subject: Subject) -> None:
    """A request that set none of its fields costs nothing."""
    if subject.target.params:
        wants_default = _make(subject).wants(SamplingParams())
        assert not wants_default, (
            f"{subject.entry.name}: wants() a request with default parameters; look at its own "
            "fields."
        )


def check_apply_returns_logits(subject: Subject) -> None:
    """Logits keep shape and dtype, and no number becomes NaN."""
    for sampling in _examples(subject):
        out = _applied(subject, sampling, range(len(_HISTORIES)))
        assert out.shape == (len(_HISTORIES), _CONTEXT.vocab_size), (
            f"{subject.entry.name}: shape {tuple(out.shape)}."
        )
        assert out.dtype is torch.float32, (
            f"{subject.entry.name}: logits become {out.dtype}; keep float32."
        )
        assert not out.isnan().any(), f"{subject.entry.name}: finite logits become NaN."


def check_examples_become_what_they_say(subject: Subject) -> None:
    """Parameters, tokens so far, logits before and after; the vocabulary is as large as they are
    long.
    """
    form = 'EXAMPLES = [({"extra_args": {"acme": [1]}}, [0, 2], [0.0, 1.0, 2.0], [0.0, -inf, 2.0])]'
    for keywords, tokens, before, after in examples(subject, form):
        context = replace(_CONTEXT, vocab_size=len(before))
        processor = construct(subject.target, context, subject.config)
        sampling = SamplingParams(max_tokens=20, **keywords)
        assert processor.wants(sampling), (
            f"{subject.entry.name}: wants() says no to its own example {keywords}."
        )
        processor.added(1, sampling, tokens, 1)
        found = processor.apply(
            torch.tensor([before], dtype=torch.float32), _rows([1], [tokens], [1])
        )[0]
        same = torch.allclose(found, torch.tensor(after, dtype=torch.float32), atol=1e-5)
        assert same, (
            f"{subject.entry.name}: {before} becomes {found.tolist()}, its example says {after}."
        )


def check_examples_in_one_batch_stay_apart(subject: Subject) -> None:
    """Rows with different parameters get in one batch what each gets alone."""
    stated = examples(subject, "")
    together = [each for each in stated if len(each[2]) == len(stated[0][2])]
    if not together:
        return
    context = replace(_CONTEXT, vocab_size=len(stated[0][2]), max_num_seqs=len(together))
    processor = construct(subject.target, context, subject.config)
    rows = list(range(len(together)))[::-1]
    for row, (keywords, tokens, _, _) in zip(rows, together, strict=True):
        processor.added(row, SamplingParams(max_tokens=20, **keywords), tokens, 1)
    before, after = (
        torch.tensor([each[side] for each in together], dtype=torch.float32) for side in (2, 3)
    )
    found = processor.apply(
        before, _rows(rows, [each[1] for each in together], [1] * len(together))
    )
    same = torch.allclose(found, after, atol=1e-5)
    assert same, (
        f"{subject.entry.name}: its examples in one batch become {found.tolist()}, not "
        f"{after.tolist()}."
    )


def check_apply_reads_nothing_back(subject: Subject) -> None:
    """Waiting for the device in every step would cost more than the processor does."""
    for sampling in _examples(subject):
        try:
            with no_readback():
                _applied(subject, sampling, range(len(_HISTORIES)))
        except ReadBack as error:
            raise AssertionError(
                f"{subject.entry.name}: apply waits for the device: {error}"
            ) from error


def check_rows_do_not_influence_each_other(subject: Subject) -> None:
    """A row's logits are those it would get alone, in any order of rows."""
    for sampling in _examples(subject):
        together = _applied(subject, sampling, range(len(_HISTORIES)))
        backwards = _applied(subject, sampling, range(len(_HISTORIES))[::-1]).flip(0)
        alone = torch.cat([_applied(subject, sampling, [i]) for i in range(len(_HISTORIES))])
        for other in (alone, backwards):
            same = torch.allclose(together, other, atol=1e-5)
            assert same, (
                f"{subject.entry.name}: a row's logits depend on the other rows of the call."
            )


def check_state_follows_from_the_tokens(subject: Subject) -> None:
    """After preemption `added` comes again with the tokens so far, and must bring the
    same state.
    """
    for sampling in _examples(subject):
        steady = _make(subject)
        resumed = _make(subject)
        tokens = _HISTORIES[3]
        prompt_len = _PROMPT_LENS[3]
        steady.added(2, sampling, tokens[:prompt_len], prompt_len)
        for length in range(prompt_len, len(tokens) + 1):
            followed = steady.apply(_logits([3]), _rows([2], [tokens[:length]], [prompt_len]))
        resumed.added(4, sampling, tokens, prompt_len)
        rebuilt = resumed.apply(_logits([3]), _rows([4], [tokens], [prompt_len]))
        same = torch.allclose(followed, rebuilt, atol=1e-5)
        assert same, (
            f"{subject.entry.name}: added() with the tokens so far gives other logits than seeing "
            "them come."
        )


def check_points_of_a_row_are_served_alike(subject: Subject) -> None:
    """With `follows_tokens = False` a row may stand in a call several times, each time a token
    further.
    """
    if getattr(subject.target, "follows_tokens", True):
        return
    for sampling in _examples(subject):
        tokens = _HISTORIES[3]
        prompt_len = _PROMPT_LENS[3]
        lengths = range(prompt_len, len(tokens) + 1)
        together = _make(subject)
        alone = _make(subject)
        for processor in (together, alone):
            processor.added(2, sampling, tokens[:prompt_len], prompt_len)
        each = [
            alone.apply(_logits([3]), _rows([2], [tokens[:length]], [prompt_len]))
            for length in lengths
        ]
        seen = _rows([2], [tokens], [prompt_len]).select([0] * len(lengths))
        last = torch.tensor(lengths)
        points = SampleRows(
            seen.rows,
            seen.prompt_lens,
            list(lengths),
            seen.row_index,
            last,
            seen.prompt_index,
            seen.token_ids,
            list(range(len(lengths))),
        )
        same = torch.allclose(
            together.apply(_logits([3] * len(lengths)), points), torch.cat(each), atol=1e-5
        )
        assert same, (
            f"{subject.entry.name}: points of one row are not served alike; set follows_tokens = "
            "True."
        )


def check_a_row_given_away_is_forgotten(subject: Subject) -> None:
    """The next request of a row starts from nothing."""
    for sampling in _examples(subject):
        fresh = _make(subject)
        used = _make(subject)
        used.added(2, sampling, _HISTORIES[1], _PROMPT_LENS[1])
        used.apply(_logits([1]), _rows([2], [_HISTORIES[1]], [_PROMPT_LENS[1]]))
        used.removed(2)
        outs = []
        for processor in (fresh, used):
            processor.added(2, sampling, _HISTORIES[0], _PROMPT_LENS[0])
            outs.append(
                processor.apply(_logits([0]), _rows([2], [_HISTORIES[0]], [_PROMPT_LENS[0]]))
            )
        assert torch.equal(*outs), (
            f"{subject.entry.name}: removed() leaves something to the row's next request."
        )


def check_an_invariant_processor_keeps_the_best_token(subject: Subject) -> None:
    """Greedy rows skip it, so it must not matter to them."""
    if not subject.target.argmax_invariant:
        return
    for sampling in _examples(subject):
        processor = _make(subject)
        processor.added(2, sampling, _HISTORIES[1], _PROMPT_LENS[1])
        for best in range(_CONTEXT.vocab_size):
            logits = torch.zeros(1, _CONTEXT.vocab_size)
            logits[0, best] = 1.0
            found = (
                processor.apply(logits, _rows([2], [_HISTORIES[1]], [_PROMPT_LENS[1]]))
                .argmax(-1)
                .tolist()
            )
            assert found == [best], (
                f"{subject.entry.name}: changes the best token; set argmax_invariant = False."
            )


def _make(subject: Subject) -> Any:
    return construct(subject.target, _CONTEXT, subject.config)


def _examples(subject: Subject) -> list[SamplingParams]:
    """Return parameters that enable the processor: one field each, all together, and the module's
    own.
    """
    own = getattr(sys.modules.get(subject.target.__module__), "EXAMPLE_PARAMS", None)
    fields = {
        "bad_words_token_ids" if name == "bad_words" else name for name in subject.target.params
    }
    known = {name: _EXAMPLES[name] for name in sorted(fields) if name in _EXAMPLES}
    given = [{name: value} for name, value in known.items()] + [known] + ([own] if own else [])
    processor = _make(subject)
    every = [
        SamplingParams(max_tokens=20, stop_token_ids=[1, 4], **keywords)
        for keywords in given
        if keywords
    ]
    return [sampling for sampling in every if processor.wants(sampling)]


def _applied(subject: Subject, sampling: SamplingParams, indices: Sequence[int]) -> torch.Tensor:
    processor = _make(subject)
    rows = [5 - i for i in indices]
    for row, i in zip(rows, indices, strict=True):
        processor.added(row, sampling, _HISTORIES[i], _PROMPT_LENS[i])
    seen = _rows(rows, [_HISTORIES[i] for i in indices], [_PROMPT_LENS[i] for i in indices])
    out: torch.Tensor = processor.apply(_logits(indices), seen)
    return out


def _logits(indices: Sequence[int]) -> torch.Tensor:
    """Return fresh logits of the histories at `indices`, always the same."""
    every = torch.randn(
        len(_HISTORIES), _CONTEXT.vocab_size, generator=torch.Generator().manual_seed(0)
    )
    return torch.stack([every[i] for i in indices])


def _rows(rows: list[int], histories: Sequence[list[int]], prompt_lens: list[int]) -> SampleRows:
    token_ids = torch.full(
        (_CONTEXT.max_num_seqs, _CONTEXT.max_model_len), 3
    )  # stale beyond each length
    for row, tokens in zip(rows, histories, strict=True):
        token_ids[row, : len(tokens)] = torch.tensor(tokens)
    lengths = [len(tokens) for tokens in histories]
    index = torch.tensor([rows, lengths, prompt_lens])
    return SampleRows(rows, prompt_lens, lengths, index[0], index[1], index[2], token_ids)
