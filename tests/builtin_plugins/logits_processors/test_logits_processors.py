"""Every builtin logits processor does to each row what a few lines of Python say it should."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_plugins.logits_processors.allowed_tokens import AllowedTokens
from builtin_plugins.logits_processors.bad_words import BadWords
from builtin_plugins.logits_processors.bias import LogitBias
from builtin_plugins.logits_processors.min_p import MinP
from builtin_plugins.logits_processors.min_tokens import MinTokens
from builtin_plugins.logits_processors.penalties import Penalties
from core.api import InvalidRequest, SamplingParams
from core.api.sampling import SamplerContext, SampleRows
from core.testing.byte_tokenizer import ByteTokenizer
from core.testing.no_readback import no_readback
from core.types.plugin_params import unsupported_params

VOCAB = 12
MAX_SEQS = 6
MAX_LEN = 24
CONTEXT = SamplerContext(VOCAB, MAX_SEQS, MAX_LEN, "cpu")

Row = tuple[SamplingParams, list[int], int]
"""Parameters, tokens so far, and how many of them are the prompt."""
Logits = list[float]


def run(
    kind: Callable[[SamplerContext], Any], rows: Sequence[Row], logits: torch.Tensor
) -> torch.Tensor:
    """Return a fresh processor's logits for the rows, placed from the last batch row down."""
    processor = kind(CONTEXT)
    history = torch.full((MAX_SEQS, MAX_LEN), VOCAB - 1)  # stale tokens must not count
    batch_rows = [MAX_SEQS - 1 - i for i in range(len(rows))]
    for batch_row, (sampling, tokens, prompt_len) in zip(batch_rows, rows, strict=True):
        assert processor.wants(sampling)
        processor.added(batch_row, sampling, tokens, prompt_len)
        history[batch_row, : len(tokens)] = torch.tensor(tokens)
    seen = sample_rows(
        batch_rows, [len(tokens) for _, tokens, _ in rows], [row[2] for row in rows], history
    )
    with no_readback():
        out: torch.Tensor = processor.apply(logits.clone(), seen)
    for batch_row in batch_rows:
        processor.removed(batch_row)
    return out


def sample_rows(
    rows: list[int], lengths: list[int], prompt_lens: list[int], history: torch.Tensor
) -> SampleRows:
    index = torch.tensor([rows, lengths, prompt_lens])
    return SampleRows(rows, prompt_lens, lengths, index[0], index[1], index[2], history)


def penalised(
    logits: Logits, sampling: SamplingParams, tokens: list[int], prompt_len: int
) -> Logits:
    out = list(logits)
    output = tokens[prompt_len:]
    for token in range(VOCAB):
        if token in tokens:
            factor = sampling.repetition_penalty
            out[token] = out[token] / factor if out[token] > 0 else out[token] * factor
        out[token] -= sampling.frequency_penalty * output.count(token)
        out[token] -= sampling.presence_penalty * (token in output)
    return out


def without_bad_words(
    logits: Logits, sampling: SamplingParams, tokens: list[int], prompt_len: int
) -> Logits:
    out = list(logits)
    output = tokens[prompt_len:]
    for *prefix, last in sampling.bad_words_token_ids:
        if output[len(output) - len(prefix) :] == prefix:
            out[last] = -math.inf
    return out


def biased(logits: Logits, sampling: SamplingParams, tokens: list[int], prompt_len: int) -> Logits:
    return [
        logit + (sampling.logit_bias or {}).get(token, 0.0) for token, logit in enumerate(logits)
    ]


def only_allowed(
    logits: Logits, sampling: SamplingParams, tokens: list[int], prompt_len: int
) -> Logits:
    return [
        x if token in (sampling.allowed_token_ids or ()) else -math.inf
        for token, x in enumerate(logits)
    ]


def long_enough(
    logits: Logits, sampling: SamplingParams, tokens: list[int], prompt_len: int
) -> Logits:
    if len(tokens) - prompt_len >= sampling.min_tokens:
        return logits
    return [-math.inf if token in sampling.stop_token_ids else x for token, x in enumerate(logits)]


def above_min_p(
    logits: Logits, sampling: SamplingParams, tokens: list[int], prompt_len: int
) -> Logits:
    weights = [math.exp(x) for x in logits]
    return [
        x if w >= sampling.min_p * max(weights) else -math.inf
        for x, w in zip(logits, weights, strict=True)
    ]


TOKEN = st.integers(0, VOCAB - 1)
PARAMS: dict[str, tuple[Any, Any, st.SearchStrategy[SamplingParams]]] = {
    "penalties": (
        Penalties,
        penalised,
        st.builds(
            SamplingParams,
            repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
            presence_penalty=st.sampled_from([-1.0, 0.0, 0.7]),
            frequency_penalty=st.sampled_from([-0.5, 0.0, 0.4]),
        ).filter(Penalties(CONTEXT).wants),
    ),
    "bad_words": (
        BadWords,
        without_bad_words,
        st.builds(
            SamplingParams,
            bad_words_token_ids=st.lists(
                st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=5
            ),
        ),
    ),
    "bias": (
        LogitBias,
        biased,
        st.builds(
            SamplingParams,
            logit_bias=st.dictionaries(TOKEN, st.floats(-9, 9, width=32), min_size=1),
        ),
    ),
    "allowed_tokens": (
        AllowedTokens,
        only_allowed,
        st.builds(SamplingParams, allowed_token_ids=st.lists(TOKEN, min_size=1)),
    ),
    "min_tokens": (
        MinTokens,
        long_enough,
        st.builds(
            SamplingParams,
            min_tokens=st.integers(1, 5),
            stop_token_ids=st.lists(TOKEN, min_size=1),
            max_tokens=st.just(5),
        ),
    ),
    "min_p": (
        MinP,
        above_min_p,
        st.builds(SamplingParams, min_p=st.sampled_from([0.05, 0.3, 1.0])),
    ),
}


def histories(tokens: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[list[int], int]]:
    return st.lists(tokens, min_size=1, max_size=10).flatmap(
        lambda t: st.tuples(st.just(t), st.integers(1, len(t)))
    )


@pytest.mark.parametrize("name", PARAMS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_each_row_follows_its_own_parameters(name: str, data: st.DataObject) -> None:
    kind, reference, params = PARAMS[name]
    history = histories(st.integers(0, 2) if name == "bad_words" else TOKEN)
    drawn = data.draw(st.lists(st.tuples(params, history), min_size=1, max_size=MAX_SEQS))
    rows = [(sampling, tokens, prompt_len) for sampling, (tokens, prompt_len) in drawn]
    seed = data.draw(st.integers(0, 1000))
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed))
    want = [reference(logits[i].tolist(), *row) for i, row in enumerate(rows)]
    torch.testing.assert_close(run(kind, rows, logits), torch.tensor(want), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", PARAMS)
def test_default_parameters_need_no_processor(name: str) -> None:
    assert not PARAMS[name][0](CONTEXT).wants(SamplingParams())


def test_every_processed_field_has_a_builtin() -> None:
    kinds = [kind for kind, _, _ in PARAMS.values()]
    sampling = SamplingParams(
        presence_penalty=1,
        frequency_penalty=1,
        repetition_penalty=2,
        min_p=0.5,
        min_tokens=1,
        logit_bias={1: 1.0},
        allowed_token_ids=[1],
        bad_words=["x"],
    )
    assert unsupported_params(sampling, kinds) == []


def test_reused_row_forgets_the_previous_request() -> None:
    processor = LogitBias(CONTEXT)
    history = torch.zeros(MAX_SEQS, MAX_LEN, dtype=torch.int64)
    rows = sample_rows([2], [1], [1], history)
    for token in (3, 5):
        processor.added(2, SamplingParams(logit_bias={token: 4.0}), [0], 1)
        biases = processor.apply(torch.zeros(1, VOCAB), rows)[0]
        assert biases.nonzero().flatten().tolist() == [token]
        processor.removed(2)


def test_eos_tokens_beyond_the_logits_are_ignored() -> None:
    sampling = SamplingParams(min_tokens=2, stop_token_ids=[1, VOCAB + 7])
    out = run(MinTokens, [(sampling, [3], 1)], torch.zeros(1, VOCAB))
    assert out[0].isneginf().nonzero().flatten().tolist() == [1]


def test_bad_words_beyond_the_vocabulary_are_ignored() -> None:
    sampling = SamplingParams(bad_words_token_ids=[[VOCAB], [VOCAB + 1, 2], [2]])
    out = run(BadWords, [(sampling, [3], 1)], torch.zeros(1, VOCAB))
    assert out[0].isneginf().nonzero().flatten().tolist() == [2]


def test_bad_words_do_not_match_across_the_prompt_end() -> None:
    sampling = SamplingParams(bad_words_token_ids=[[4, 5]])
    assert run(BadWords, [(sampling, [4], 1)], torch.zeros(1, VOCAB)).isfinite().all()
    assert not run(BadWords, [(sampling, [4, 4], 1)], torch.zeros(1, VOCAB)).isfinite().all()


def test_min_tokens_without_stop_tokens_needs_no_processor() -> None:
    assert not MinTokens(CONTEXT).wants(SamplingParams(min_tokens=4))


def test_stop_tokens_are_allowed_once_min_tokens_is_reached() -> None:
    processor = MinTokens(CONTEXT)
    processor.added(1, SamplingParams(min_tokens=2, stop_token_ids=[7]), [5], 1)
    history = torch.zeros(MAX_SEQS, MAX_LEN, dtype=torch.int64)
    seen = [
        processor.apply(torch.zeros(1, VOCAB), sample_rows([1], [n], [1], history))
        for n in (1, 2, 3, 4)
    ]
    assert [math.isfinite(logits[0, 7]) for logits in seen] == [False, False, True, True]


def test_bad_words_are_tokenized_with_and_without_space() -> None:
    tokenizer = ByteTokenizer()
    prepared = BadWords.prepare(SamplingParams(bad_words=["no", " no"]), tokenizer)
    assert prepared.bad_words_token_ids == [
        tokenizer.encode(text, add_special_tokens=False) for text in ("no", " no")
    ]
    untouched = SamplingParams()
    assert BadWords.prepare(untouched, None) is untouched
    with pytest.raises(InvalidRequest, match="bad_words: there is no tokenizer"):
        BadWords.prepare(SamplingParams(bad_words=["no"]), None)
