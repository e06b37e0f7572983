"""Whole worker steps: a row's tokens depend on the row only."""

from __future__ import annotations

import pytest

from core.testing.fake_model import NAN_TOKEN, FakeConfig
from core.testing.no_readback import no_readback
from core.types import SamplingParams
from tests.core.worker.step_driver import GREEDY, Driver

PROMPT = [5, 9, 30, 7, 22, 41, 8]
EVERYTHING = SamplingParams(
    temperature=0.8,
    top_k=20,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.2,
    presence_penalty=0.5,
    frequency_penalty=0.3,
    logit_bias={3: 1.0, 7: -2.0},
    allowed_token_ids=list(range(2, 60)),
    bad_words_token_ids=[[4], [5, 6], [5, 9, 30]],
    min_tokens=5,
    stop_token_ids=[11],
    logprobs=3,
    prompt_logprobs=2,
)


@pytest.mark.parametrize(
    "model", [FakeConfig(), FakeConfig(window=6)], ids=["one layer", "full and windowed"]
)
def test_chunked_prefill_gives_the_same_tokens(model: FakeConfig) -> None:
    whole = Driver(model=model)
    parts = Driver(model=model)
    for driver in (whole, parts):
        driver.add("a", PROMPT)
    assert parts.step({"a": 3}).tokens == []
    assert parts.step({"a": 1}).tokens == []
    assert parts.generate("a", 8) == whole.generate("a", 8)


@pytest.mark.parametrize(
    "sampling", [GREEDY, SamplingParams(temperature=1.0), EVERYTHING], ids=["0", "1", "all"]
)
def test_tokens_are_independent_of_the_batch(sampling: SamplingParams) -> None:
    alone = Driver()
    crowded = Driver()
    alone.add("a", PROMPT, sampling, seed=7)
    crowded.add("greedy", [3, 4])
    crowded.add("random", [9], SamplingParams(temperature=2.0, top_k=5), seed=1)
    crowded.step()
    crowded.add("a", PROMPT, sampling, seed=7)
    crowded.add("shaped", [6, 7, 8], EVERYTHING, seed=3)
    want = alone.generate("a", 10)
    got = crowded.generate("a", 4)
    crowded.end("random")
    crowded.add("late", PROMPT, SamplingParams(top_p=0.5), seed=7)
    assert got + crowded.generate("a", 6) == want


def test_tokens_depend_on_the_seed() -> None:
    driver = Driver()
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        driver.add(name, PROMPT, SamplingParams(temperature=2.0), seed=seed)
    driver.generate("a", 12)
    assert driver.tokens["a"] == driver.tokens["b"] != driver.tokens["c"]


def test_resumed_request_continues_identically() -> None:
    unbroken = Driver()
    broken = Driver()
    for driver in (unbroken, broken):
        driver.add("a", PROMPT, EVERYTHING, seed=5)
    want = unbroken.generate("a", 9)
    broken.generate("a", 4)
    known = broken.tokens["a"]
    broken.end("a")
    broken.add("other", [2, 3], GREEDY)
    broken.step()
    broken.add("a", known, EVERYTHING, seed=5, prompt_len=len(PROMPT))
    assert known[len(PROMPT) :] + broken.generate("a", 5) == want


def test_non_finite_logits_fail_only_their_row() -> None:
    alone = Driver()
    crowded = Driver()
    alone.add("a", PROMPT)
    crowded.add("bad", [5, NAN_TOKEN, 6])
    crowded.add("a", PROMPT)
    want = alone.generate("a", 5)
    result = crowded.step()
    assert result.errors == {
        crowded.rows["bad"]: "the model produced non-finite numbers for this request"
    }
    assert result.by_row()[result.rows.index(crowded.rows["bad"])] == []
    crowded.end("bad")
    assert crowded.tokens["a"][len(PROMPT) :] + crowded.generate("a", 4) == want


def test_blocks_with_non_finite_values_can_be_reused() -> None:
    fresh = Driver(max_num_seqs=1)
    used = Driver(max_num_seqs=1)
    used.add("bad", [5, NAN_TOKEN] * 20)
    used.step()
    used.end("bad")
    for driver in (fresh, used):
        driver.add("a", PROMPT)
    assert used.generate("a", 5) == fresh.generate("a", 5)


def test_request_without_allowed_tokens_fails_alone() -> None:
    driver = Driver()
    driver.add("a", PROMPT)
    driver.add("none", PROMPT, SamplingParams(allowed_token_ids=[4], bad_words_token_ids=[[4]]))
    result = driver.step()
    assert list(result.errors) == [driver.rows["none"]]
    assert "every token is excluded" in result.errors[driver.rows["none"]]


def test_empty_plan_is_executed() -> None:
    driver = Driver()
    result = driver.step({})
    assert (result.rows, result.tokens, result.errors) == ([], [], {})
    driver.add("a", PROMPT)
    driver.step()
    driver.end("a")
    assert driver.step({}).rows == []


def test_prefill_chunk_samples_nothing() -> None:
    driver = Driver()
    driver.add("a", PROMPT)
    assert driver.step({"a": 2}).rows == []


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits"])
def test_step_reads_no_device_value_back(backend: str, mode: str) -> None:
    driver = Driver(
        "attention_reference",
        attention_backend=backend,
        logprobs_mode=mode,
        model=FakeConfig(window=6),
    )
    driver.add("greedy", PROMPT)
    driver.add("everything", PROMPT, EVERYTHING, seed=1, eos=(12,))
    driver.add("nucleus", PROMPT, SamplingParams(top_p=0.8), seed=2)
    driver.add("penal", [3], SamplingParams(temperature=0, frequency_penalty=1.0))
    plans = [
        {"greedy": 7, "everything": 4},
        {"everything": 3, "greedy": 1, "nucleus": 7, "penal": 1},
        None,
        None,
    ]
    for counts in plans:
        plan = driver.plan(counts)
        with no_readback():
            pending = driver.worker.execute(plan)
        driver.take(pending.get())
    assert len(driver.tokens["everything"]) == len(PROMPT) + 3
