"""Log-probabilities in all modes: raw or processed, log-probabilities or logits."""

from __future__ import annotations

import pytest
import torch

from core.models.ops.sampling import gather_logprobs, logprobs_to_lists
from core.step import Logprobs
from core.testing.fake_model import NAN_TOKEN, FakeConfig
from core.types import SamplingParams
from tests.core.worker.step_driver import Driver

PROMPT = [5, 9, 30, 7, 22, 41, 8]
BIASED = {"temperature": 0.5, "logit_bias": {3: 50.0}, "top_k": 2}
MODES = ["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]


def first(mode: str, **params: object) -> Logprobs:
    driver = Driver(logprobs_mode=mode, model=FakeConfig())
    driver.add("a", PROMPT, SamplingParams(**params), seed=1)  # type: ignore[arg-type]
    driver.add("b", PROMPT, SamplingParams(temperature=0, logit_bias={9: 5.0}))
    return driver.step().logprobs[driver.rows["a"]][0]


def by_token(entry: Logprobs) -> torch.Tensor:
    values = torch.zeros(64)
    values[entry.token_ids] = torch.tensor(entry.values)
    return values


def test_logprobs_list_the_chosen_token_first() -> None:
    scores = torch.tensor([[0.1, 3.0, 2.0, 1.0], [5.0, 4.0, 3.0, 2.0], [1.0, 1.0, 0.0, 0.0]])
    entries = logprobs_to_lists(gather_logprobs(scores, torch.tensor([2, 0, 1]), [2, 0, -1]))
    assert entries[0].token_ids == [2, 1, 2]
    assert entries[0].values == [2.0, 3.0, 2.0]
    assert entries[1].token_ids == [0]
    assert [entry.rank for entry in entries] == [2, 1, 1]
    assert len(entries[2].token_ids) == 5


@pytest.mark.parametrize("params", [{"temperature": 0}, BIASED], ids=["greedy", "changed"])
def test_logprobs_modes(params: dict[str, object]) -> None:
    found = {mode: by_token(first(mode, logprobs=-1, **params)) for mode in MODES}
    raw = found["raw_logits"]
    torch.testing.assert_close(found["raw_logprobs"], raw.log_softmax(0), atol=1e-5, rtol=1e-5)
    processed = found["processed_logits"]
    torch.testing.assert_close(
        found["processed_logprobs"], processed.log_softmax(0), atol=1e-5, rtol=1e-5
    )
    want = raw.clone()
    if params is BIASED:
        want[3] += 50.0
        want /= 0.5
        want[want < want.topk(2).values[-1]] = float("-inf")
    torch.testing.assert_close(processed, want, atol=1e-5, rtol=1e-5)


def test_logprobs_follow_each_rows_own_count() -> None:
    driver = Driver()
    for name, count in (("none", None), ("zero", 0), ("three", 3)):
        driver.add(name, PROMPT, SamplingParams(temperature=0, logprobs=count))
    found = driver.step().logprobs
    assert {row: len(entries[0].token_ids) for row, entries in found.items()} == {
        driver.rows["zero"]: 1,
        driver.rows["three"]: 4,
    }


@pytest.mark.parametrize("chunks", [[7], [3, 4], [1, 1, 5], [6, 1], [2, 2, 2, 1]], ids=str)
@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits"])
def test_prompt_logprobs_are_independent_of_chunks(chunks: list[int], mode: str) -> None:
    driver = Driver(logprobs_mode=mode)
    driver.add("other", [3, 4, 5])
    driver.add("a", PROMPT, SamplingParams(prompt_logprobs=2))
    found: list[Logprobs] = []
    for i, count in enumerate(chunks):
        counts = {"other": 3 if i == 0 else 1, "a": count}
        result = driver.step(counts)
        found += result.prompt_logprobs.get(driver.rows["a"], [])
    later = driver.step()
    assert not later.prompt_logprobs  # the prompt is over
    assert [entry.token_ids[0] for entry in found] == PROMPT[1:]
    whole = Driver(logprobs_mode=mode)
    whole.add("a", PROMPT, SamplingParams(prompt_logprobs=2))
    for entry, want in zip(found, whole.step().prompt_logprobs[0], strict=True):
        assert (entry.token_ids, entry.rank) == (want.token_ids, want.rank)
        assert entry.values == pytest.approx(want.values, abs=1e-5)


def test_resumed_request_has_no_prompt_logprobs_for_output() -> None:
    driver = Driver()
    driver.add("a", [*PROMPT, 3, 4], SamplingParams(prompt_logprobs=0), prompt_len=len(PROMPT))
    entries = driver.step().prompt_logprobs[driver.rows["a"]]
    assert [entry.token_ids for entry in entries] == [[token] for token in PROMPT[1:]]


def test_failed_row_has_no_logprobs() -> None:
    driver = Driver()
    driver.add("bad", [NAN_TOKEN], SamplingParams(logprobs=1))
    driver.add("good", PROMPT, SamplingParams(logprobs=1))
    result = driver.step()
    assert list(result.errors) == [driver.rows["bad"]]
    assert list(result.logprobs) == [driver.rows["good"]]
