"""The builtin logits processors against the plainest loops that say what each parameter means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from builtin_plugins.logits_processors.allowed_tokens import AllowedTokens
from builtin_plugins.logits_processors.bad_words import BadWords
from builtin_plugins.logits_processors.bias import LogitBias
from builtin_plugins.logits_processors.min_p import MinP
from builtin_plugins.logits_processors.min_tokens import MinTokens
from builtin_plugins.logits_processors.penalties import Penalties
from core.contracts import SamplerContext, SampleRows
from core.testing import conformance
from core.testing.no_readback import no_readback
from core.types import SamplingParams

VOCAB, ROWS, LENGTH = 50, 12, 24
CONTEXT = SamplerContext(VOCAB, ROWS, LENGTH, "cpu")
NEVER = float("-inf")
PLUGINS = ("allowed_tokens", "bad_words", "bias", "min_p", "min_tokens", "penalties")

Meaning = Callable[[list[float], SamplingParams, list[int], int], list[float]]


def allowed(logits: list[float], sampling: SamplingParams, tokens: list[int], prompt_len: int) -> list[float]:
    listed = sampling.allowed_token_ids or []
    return [logit if token in listed else NEVER for token, logit in enumerate(logits)]


def biased(logits: list[float], sampling: SamplingParams, tokens: list[int], prompt_len: int) -> list[float]:
    return [logit + (sampling.logit_bias or {}).get(token, 0.0) for token, logit in enumerate(logits)]


def above_min_p(logits: list[float], sampling: SamplingParams, tokens: list[int], prompt_len: int) -> list[float]:
    probs = torch.tensor(logits, dtype=torch.float64).softmax(0).tolist()
    return [
        logit if p >= sampling.min_p * max(probs) * (1 - 1e-6) else NEVER
        for p, logit in zip(probs, logits, strict=True)
    ]


def not_yet(logits: list[float], sampling: SamplingParams, tokens: list[int], prompt_len: int) -> list[float]:
    stops = sampling.stop_token_ids if len(tokens) - prompt_len < sampling.min_tokens else []
    return [NEVER if token in stops else logit for token, logit in enumerate(logits)]


def penalised(logits: list[float], sampling: SamplingParams, tokens: list[int], prompt_len: int) -> list[float]:
    out, output = list(logits), tokens[prompt_len:]
    for token in set(tokens):
        factor = sampling.repetition_penalty
        out[token] = out[token] / factor if out[token] > 0 else out[token] * factor
    for token in set(output):
        out[token] -= sampling.presence_penalty + sampling.frequency_penalty * output.count(token)
    return out


def without_bad_words(logits: list[float], sampling: SamplingParams, tokens: list[int], prompt_len: int) -> list[float]:
    out, output = list(logits), tokens[prompt_len:]
    for *beginning, last in sampling.bad_words_token_ids:
        if last < VOCAB and (not beginning or output[-len(beginning) :] == beginning):
            out[last] = NEVER
    return out


CASES: list[tuple[type[Any], Meaning, list[dict[str, Any]]]] = [
    (AllowedTokens, allowed, [{"allowed_token_ids": [3]}, {"allowed_token_ids": [0, 7, 49, 7]}]),
    (LogitBias, biased, [{"logit_bias": {3: 1.5, 49: -100.0}}, {"logit_bias": {0: 100.0}}]),
    (MinP, above_min_p, [{"min_p": 0.05}, {"min_p": 1.0}, {"min_p": 1e-6}]),
    (
        MinTokens,
        not_yet,
        [{"min_tokens": 3, "stop_token_ids": [1, 2, 2]}, {"min_tokens": 16, "stop_token_ids": [49, 5000]}],
    ),
    (
        Penalties,
        penalised,
        [
            {"repetition_penalty": 1.7},
            {"presence_penalty": -1.0},
            {"frequency_penalty": 0.6},
            {"repetition_penalty": 0.5, "presence_penalty": 1.0, "frequency_penalty": 2.0},
        ],
    ),
    (
        BadWords,
        without_bad_words,
        [
            {"bad_words_token_ids": [[4]]},
            {"bad_words_token_ids": [[1, 5], [2, 5], [5], [1, 1, 2, 3, 1]]},
            {"bad_words_token_ids": [[0, 9999], [2, 1, 0], [1, 0]]},
        ],
    ),
]


def batch(generator: torch.Generator, order: Sequence[int]) -> tuple[torch.Tensor, SampleRows]:
    """Rows of few different tokens, so that every coincidence occurs; some have generated nothing yet."""
    token_ids = torch.randint(0, 4, (ROWS, LENGTH), generator=generator)
    lengths = torch.randint(1, LENGTH, (len(order),), generator=generator).tolist()
    prompt_lens = [1 + int(torch.randint(0, length, (), generator=generator)) for length in lengths]
    index = torch.tensor([list(order), lengths, prompt_lens])
    rows = SampleRows(list(order), prompt_lens, lengths, index[0], index[1], index[2], token_ids)
    return torch.randn(len(order), VOCAB, generator=generator) * 4, rows


@pytest.mark.parametrize(("processor", "meaning", "variants"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_processor_does_what_its_parameter_means(
    processor: type[Any], meaning: Meaning, variants: list[dict[str, Any]]
) -> None:
    generator = torch.Generator().manual_seed(0)
    subject = processor(CONTEXT)
    for order in ([0], [3, 1, 2], [5, 11, 0, 7, 8, 2], [9, 4]) * 4:
        logits, rows = batch(generator, order)
        sampling = [SamplingParams(**variants[row % len(variants)], max_tokens=None) for row in order]
        expected = []
        for i, row in enumerate(order):
            assert subject.wants(sampling[i])
            tokens = rows.token_ids[row, : rows.lengths[i]].tolist()
            subject.added(row, sampling[i], tokens, rows.prompt_lens[i])
            expected.append(meaning(logits[i].tolist(), sampling[i], tokens, rows.prompt_lens[i]))
        with no_readback():
            found = subject.apply(logits, rows)
        torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-5)
        for row in order:
            subject.removed(row)


@pytest.mark.parametrize("processor", [case[0] for case in CASES], ids=lambda processor: processor.__name__)
def test_neutral_parameters_are_not_wanted(processor: type[Any]) -> None:
    assert not processor(CONTEXT).wants(SamplingParams(stop_token_ids=[3], ignore_eos=True))


def test_min_tokens_without_anything_that_ends_is_not_wanted() -> None:
    assert not MinTokens(CONTEXT).wants(SamplingParams(min_tokens=4))


def test_generation_goes_on_step_by_step_until_the_minimum_is_reached() -> None:
    subject = MinTokens(CONTEXT)
    subject.added(1, SamplingParams(min_tokens=2, stop_token_ids=[7]), [5], 1)
    token_ids = torch.zeros((ROWS, LENGTH), dtype=torch.int64)
    ends = []
    for length in (1, 2, 3, 4):
        index = torch.tensor([[1], [length], [1]])
        rows = SampleRows([1], [1], [length], index[0], index[1], index[2], token_ids)
        ends.append(math.isfinite(subject.apply(torch.zeros(1, VOCAB), rows)[0, 7]))
    assert ends == [False, False, True, True]


@pytest.mark.parametrize(
    "case", [c for name in PLUGINS for c in conformance.cases(f"logits_{name.removeprefix('logit_')}")], ids=str
)
def test_processor_keeps_its_contract(case: conformance.Case) -> None:
    case()
