"""Worker halves of features: what they are shown, what they may add, and guesses that they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import halves
import pytest
from step_driver import GREEDY, Driver

from core.step import StepPlan
from core.types import SamplingParams

HALVES = str(Path(__file__).with_name("halves_plugin.py"))
PROMPT = [5, 9, 30, 7, 22, 41, 8]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    halves.SEEN.clear()
    halves.ATTACHED.clear()
    halves.GUESSES.clear()


def seen(what: str) -> list[Any]:
    return [facts for name, facts in halves.SEEN if name == what]


def test_layers_that_a_half_adds_have_caches_and_inputs_behind_the_models() -> None:
    driver = Driver(HALVES)
    parts = halves.ATTACHED["parts"]
    assert [len(parts.caches), parts.first_layer] == [1, 1]
    assert parts.caches[0].shape[-1] == 8
    driver.add("a", PROMPT)
    driver.step()
    assert seen("before_forward")[0] == (2, [0], [0, 1, 2, 3, 4, 5, 6])
    assert [group.layers for group in parts.layout.groups] == [[0, 1]]
    for (pool, _), memory in parts.memory.items():
        assert memory.shape[0] == parts.layout.pools[pool].num_blocks
        assert memory.dtype.itemsize == 1


def test_plans_without_rows_are_begun_and_answered() -> None:
    driver = Driver(HALVES)
    plan = StepPlan(0, [], [], [], [], [], [], [], {"half": b"load"})
    assert driver.worker.execute(plan).get().payloads == {"half": [b"after"]}
    assert seen("begin") == [b"load"]
    assert driver.worker.call("half.do", b"!") == b"do!"
    assert driver.worker.call("nobody.do", b"!") is None


def test_steps_in_which_every_half_rests_are_not_shown_to_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, bytes | None]] = []

    def rests(half: halves.Half, num_rows: int, payload: bytes | None) -> bool:
        asked.append((num_rows, payload))
        return len(asked) in {2, 3}

    monkeypatch.setattr(halves.Half, "rests", rests, raising=False)
    driver = Driver(HALVES)
    plain = Driver()
    tokens: dict[str, list[int]] = {"with": [], "without": []}
    for name, each in (("with", driver), ("without", plain)):
        each.add("a", PROMPT)
        for _ in range(4):
            tokens[name] += each.step().tokens
    assert tokens["with"] == tokens["without"]
    assert asked == [(1, None)] * 4
    assert [facts[1] for facts in seen("before_forward")] == [[0], [len(PROMPT) + 2]]
    assert [len(seen(name)) for name in ("begin", "sampled")] == [2, 2]
    assert [facts[4] for facts in seen("sampled")] == [[7], [10]], (
        "where the row goes on is noted when somebody reads it"
    )


def test_what_a_half_tells_reaches_who_listens() -> None:
    driver = Driver(HALVES)
    heard = []
    driver.worker.told = lambda name, data: heard.append((name, data))
    halves.ATTACHED["parts"].tell(b"news")
    assert heard == [("half", b"news")]


SAMPLINGS = {
    "greedy": GREEDY,
    "seeded": SamplingParams(temperature=1.0, seed=4),
    "everything": SamplingParams(
        temperature=0.8, top_k=20, min_p=0.01, repetition_penalty=1.2, logprobs=2, min_tokens=4
    ),
}


def guessed_step(driver: Driver, name: str, guess: list[int]) -> Any:
    """Let the half guess behind the last known token of one request; the plan says where it goes
    on.
    """
    row = driver.rows[name]
    known = len(driver.tokens[name])
    halves.GUESSES.append((row, known, guess))
    plan = driver.plan({name: 1})
    plan = replace_plan(plan, counts=[1 + len(guess)], guesses=[len(guess)])
    result = driver.worker.execute(plan).get()
    driver.take(result)
    driver._computed[name] += result.accepted[0] - 1
    return result


def replace_plan(plan: StepPlan, **fields: Any) -> StepPlan:
    names = StepPlan.__struct_fields__
    return StepPlan(**{**{name: getattr(plan, name) for name in names}, **fields})


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_tokens_and_logprobs_are_those_without_guesses_however_right_these_are(
    sampling: SamplingParams,
) -> None:
    plain = Driver()
    plain.add("a", PROMPT, sampling, seed=9)
    logprobs = [entry for _ in range(12) for entry in plain.step().logprobs.get(0, [])]
    want = plain.tokens["a"]
    driver = Driver(HALVES)
    driver.add("a", PROMPT, sampling, seed=9)
    found = driver.step().logprobs.get(0, [])
    rights = []
    for right in (0, 3, 1, 2):
        known = len(driver.tokens["a"])
        guess = [*want[known : known + right], *([60] * (3 - right))]
        result = guessed_step(driver, "a", guess)
        rights.append(result.accepted[0] - 1)
        found = [*found, *result.logprobs.get(0, [])]
        assert driver.tokens["a"] == want[: len(driver.tokens["a"])]
    assert all(got >= right for got, right in zip(rights, (0, 3, 1, 2), strict=True))
    for entry, truth in zip(found, logprobs, strict=False):
        assert (entry.token_ids, entry.rank) == (truth.token_ids, truth.rank)
        assert entry.values == pytest.approx(truth.values, abs=1e-5)
    assert len(found) == (len(driver.tokens["a"]) - len(PROMPT)) * bool(sampling.logprobs)
    rows, points, lengths, accepted, ends, hidden = seen("sampled")[2]
    assert (rows, points, len(lengths), hidden) == ([0] * 4, [0, 1, 2, 3], 4, 4)
    assert accepted == [4]
    assert ends == [lengths[-1]]


def test_a_processor_that_follows_tokens_gets_one_token_in_a_step(tmp_path: Any) -> None:
    file = tmp_path / "follower.py"
    file.write_text(
        "from core.api import Entry, hookimpl\n"
        "class Follower:\n"
        "    params, argmax_invariant, seen = (), False, []\n"
        "    def __init__(self, context): pass\n"
        "    def wants(self, sampling): return bool(sampling.extra_args)\n"
        "    def added(self, row, sampling, token_ids, prompt_len): pass\n"
        "    def removed(self, row): pass\n"
        "    def apply(self, logits, rows):\n"
        "        Follower.seen.append(list(rows.points))\n"
        "        return logits\n"
        "@hookimpl\n"
        "def engine_logits_processors():\n"
        "    return [Entry('follower', Follower, 'remembers')]\n"
    )
    plain = Driver()
    driver = Driver(HALVES, str(file))
    for each, extra in ((plain, {}), (driver, {"extra_args": {"x": 1}})):
        each.add("a", PROMPT, SamplingParams(temperature=0, **extra))
    want = plain.generate("a", 6)
    driver.step()
    result = guessed_step(driver, "a", want[1:4])
    assert (result.accepted, result.tokens) == ([1], [want[1]])
    registered = next(
        r for r in driver.registry.entries("logits_processors") if r.entry.name == "follower"
    )
    assert driver.registry.load(registered).seen == [[0], [0]]


def test_a_half_may_decide_which_guesses_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def verify(self: Any, rows: Any, guessed: Any, tokens: Any, logits: Any, payload: Any) -> Any:
        assert logits.shape[0] == len(rows.rows)
        return guessed.where(guessed == 60, tokens), guessed == 60

    monkeypatch.setattr(halves.Half, "verify", verify, raising=False)
    driver = Driver(HALVES)
    driver.add("a", PROMPT)
    driver.step()
    result = guessed_step(driver, "a", [60, 60, 33])
    assert (result.accepted, result.tokens[:2]) == ([3], [60, 60])


def test_a_dummy_step_touches_the_null_block_of_attention_only() -> None:
    driver = Driver(HALVES)
    driver.add("a", PROMPT)
    driver.step()
    before = {place: memory.clone() for place, memory in halves.ATTACHED["parts"].memory.items()}
    driver.worker.dummy(5)
    for place, memory in halves.ATTACHED["parts"].memory.items():
        assert (memory[1:] == before[place][1:]).all()
    plain = Driver()
    plain.add("a", PROMPT)
    plain.step()
    assert driver.generate("a", 4) == plain.generate("a", 4)
