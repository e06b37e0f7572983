"""`best_of`: selection of the returned sequences, and conflicts with other fields."""

from __future__ import annotations

import pytest

from builtin_plugins.routes.openai.best_of import select_best
from core.api import CompletionOutput, RequestOutput, SamplingParams


def output(*scored: tuple[float, int]) -> RequestOutput:
    """Return an output of sequences with these log-probability sums and token counts."""
    completions = [
        CompletionOutput(
            i, f"{i}", [1] * num_tokens, logprob, [{} for _ in range(num_tokens)], "stop"
        )
        for i, (logprob, num_tokens) in enumerate(scored)
    ]
    return RequestOutput("r", None, [1], None, completions, finished=True)


def test_best_of_ranks_by_mean_logprob() -> None:
    found = select_best(output((-4.0, 2), (-6.0, 6), (-1.5, 1), (0.0, 0)), SamplingParams(n=2))
    assert [(completion.index, completion.text) for completion in found] == [(0, "3"), (1, "1")]
    assert all(completion.logprobs is None for completion in found)
    (scored,) = select_best(output((-4.0, 2), (-6.0, 6)), SamplingParams(n=1, logprobs=0))
    assert (scored.text, len(scored.logprobs or ())) == ("1", 6)


def test_best_of_generates_all_and_returns_n(api) -> None:
    reply = api.complete(["ab", "cd"], n=2, best_of=3, max_tokens=2).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert reply["usage"]["completion_tokens"] == 2 * 3 * 2
    assert all(choice["logprobs"] is None for choice in reply["choices"])
    assert [params.n for params in api.engine.sampling] == [3, 3]


def test_best_of_equal_to_n_has_no_effect(api) -> None:
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
def test_best_of_conflicts_are_rejected(api, fields) -> None:
    reply = api.complete(**fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "best_of")
    assert not api.engine.sampling


def test_chat_rejects_best_of(api) -> None:
    assert api.chat("a", best_of=2).json()["error"]["param"] == "best_of"
