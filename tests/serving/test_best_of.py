"""`best_of`: which of the sequences that were generated a client gets, and what cannot be chosen."""

from __future__ import annotations

import pytest

from builtin_plugins.routes.openai.best import best
from core.api import CompletionOutput, RequestOutput, SamplingParams


def output(*scored: tuple[float, int]) -> RequestOutput:
    """An output whose sequences have these sums of log-probabilities and numbers of tokens."""
    completions = [
        CompletionOutput(
            i, f"{i}", [1] * num_tokens, logprob, [{} for _ in range(num_tokens)], "stop"
        )
        for i, (logprob, num_tokens) in enumerate(scored)
    ]
    return RequestOutput("r", None, [1], None, completions, finished=True)


def test_the_likeliest_by_token_are_the_answer_the_best_first() -> None:
    found = best(output((-4.0, 2), (-6.0, 6), (-1.5, 1), (0.0, 0)), SamplingParams(n=2))
    assert [(completion.index, completion.text) for completion in found] == [(0, "3"), (1, "1")]
    assert all(completion.logprobs is None for completion in found)
    (scored,) = best(output((-4.0, 2), (-6.0, 6)), SamplingParams(n=1, logprobs=0))
    assert (scored.text, len(scored.logprobs or ())) == ("1", 6)


def test_as_many_are_generated_and_counted_and_n_are_the_answer(api) -> None:
    reply = api.complete(["ab", "cd"], n=2, best_of=3, max_tokens=2).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert reply["usage"]["completion_tokens"] == 2 * 3 * 2
    assert all(choice["logprobs"] is None for choice in reply["choices"])
    assert [params.n for params in api.engine.sampling] == [3, 3]


def test_as_many_as_are_asked_for_leave_nothing_to_choose(api) -> None:
    assert api.complete("ab", n=2, best_of=2, stream=True).status_code == 200
    assert api.engine.sampling[-1].logprobs is None


@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 1, "n": 2},
        {"best_of": 2, "stream": True},
        {"best_of": 2, "use_beam_search": True, "temperature": 0},
        {"best_of": 0},
        {"best_of": 65},
        {"best_of": "2"},
        {"best_of": 64, "prompt": ["a"] * 17},
    ],
)
def test_what_nothing_can_be_chosen_by_is_refused_by_name(api, fields) -> None:
    reply = api.complete(**fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "best_of")
    assert not api.engine.sampling


def test_chat_has_no_best_of(api) -> None:
    assert api.chat("a", best_of=2).json()["error"]["param"] == "best_of"
