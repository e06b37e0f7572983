"""Worker extensions: their calls, layers, messages and draft tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.step import StepPlan
from core.types import SamplingParams
from tests.core.worker import recording_extension
from tests.core.worker.step_driver import GREEDY, Driver

RECORDER = str(Path(__file__).with_name("recording_extension_plugin.py"))
PROMPT = [5, 9, 30, 7, 22, 41, 8]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    recording_extension.SEEN.clear()
    recording_extension.ATTACHED.clear()
    recording_extension.DRAFTS.clear()


def seen(what: str) -> list[Any]:
    return [facts for name, facts in recording_extension.SEEN if name == what]


def test_extension_layers_follow_the_models_layers() -> None:
    driver = Driver(RECORDER)
    parts = recording_extension.ATTACHED["parts"]
    assert [len(parts.caches), parts.first_layer] == [1, 1]
    assert parts.caches[0].shape[-1] == 8
    driver.add("a", PROMPT)
    driver.step()
    assert seen("before_forward")[0] == (2, [0], [0, 1, 2, 3, 4, 5, 6])
    assert [group.layers for group in parts.layout.groups] == [[0, 1]]
    for (pool, _), memory in parts.memory.items():
        assert memory.shape[0] == parts.layout.pools[pool].num_blocks
        assert memory.dtype.itemsize == 1


def test_plans_without_rows_reach_extensions() -> None:
    driver = Driver(RECORDER)
    plan = StepPlan(0, [], [], [], [], [], [], [], {"recorder": b"load"})
    assert driver.worker.execute(plan).get().payloads == {"recorder": [b"after"]}
    assert seen("begin") == [b"load"]
    assert driver.worker.call("recorder.do", b"!") == b"do!"
    assert driver.worker.call("unknown.do", b"!") is None


def test_skipped_steps_call_no_extension(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, bytes | None]] = []

    def skips_step(
        half: recording_extension.Recorder, num_rows: int, payload: bytes | None
    ) -> bool:
        calls.append((num_rows, payload))
        return len(calls) in {2, 3}

    monkeypatch.setattr(recording_extension.Recorder, "skips_step", skips_step, raising=False)
    driver = Driver(RECORDER)
    plain = Driver()
    tokens: dict[str, list[int]] = {"with": [], "without": []}
    for name, each in (("with", driver), ("without", plain)):
        each.add("a", PROMPT)
        for _ in range(4):
            tokens[name] += each.step().tokens
    assert tokens["with"] == tokens["without"]
    assert calls == [(1, None)] * 4
    assert [facts[1] for facts in seen("before_forward")] == [[0], [len(PROMPT) + 2]]
    assert [len(seen(name)) for name in ("begin", "sampled")] == [2, 2]
    assert [facts[4] for facts in seen("sampled")] == [[7], [10]], (
        "next positions are tracked when an extension reads them"
    )


def test_sent_payload_reaches_the_callback() -> None:
    driver = Driver(RECORDER)
    received = []
    driver.worker.on_message = lambda name, data: received.append((name, data))
    recording_extension.ATTACHED["parts"].send(b"news")
    assert received == [("recorder", b"news")]


SAMPLINGS = {
    "greedy": GREEDY,
    "seeded": SamplingParams(temperature=1.0, seed=4),
    "everything": SamplingParams(
        temperature=0.8, top_k=20, min_p=0.01, repetition_penalty=1.2, logprobs=2, min_tokens=4
    ),
}


def draft_step(driver: Driver, name: str, drafts: list[int]) -> Any:
    """Let the extension write draft tokens after the last known token of a request."""
    row = driver.rows[name]
    known = len(driver.tokens[name])
    recording_extension.DRAFTS.append((row, known, drafts))
    plan = driver.plan({name: 1})
    plan = replace_plan(plan, counts=[1 + len(drafts)], num_draft_tokens=[len(drafts)])
    result = driver.worker.execute(plan).get()
    driver.take(result)
    driver._computed[name] += result.accepted[0] - 1
    return result


def replace_plan(plan: StepPlan, **fields: Any) -> StepPlan:
    names = StepPlan.__struct_fields__
    return StepPlan(**{**{name: getattr(plan, name) for name in names}, **fields})


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_draft_tokens_change_no_token_or_logprob(
    sampling: SamplingParams,
) -> None:
    plain = Driver()
    plain.add("a", PROMPT, sampling, seed=9)
    logprobs = [entry for _ in range(12) for entry in plain.step().logprobs.get(0, [])]
    want = plain.tokens["a"]
    driver = Driver(RECORDER)
    driver.add("a", PROMPT, sampling, seed=9)
    found = driver.step().logprobs.get(0, [])
    accepted_counts = []
    for right in (0, 3, 1, 2):
        known = len(driver.tokens["a"])
        drafts = [*want[known : known + right], *([60] * (3 - right))]
        result = draft_step(driver, "a", drafts)
        accepted_counts.append(result.accepted[0] - 1)
        found = [*found, *result.logprobs.get(0, [])]
        assert driver.tokens["a"] == want[: len(driver.tokens["a"])]
    assert all(got >= right for got, right in zip(accepted_counts, (0, 3, 1, 2), strict=True))
    for entry, truth in zip(found, logprobs, strict=False):
        assert (entry.token_ids, entry.rank) == (truth.token_ids, truth.rank)
        assert entry.values == pytest.approx(truth.values, abs=1e-5)
    assert len(found) == (len(driver.tokens["a"]) - len(PROMPT)) * bool(sampling.logprobs)
    rows, points, lengths, accepted, ends, hidden = seen("sampled")[2]
    assert (rows, points, len(lengths), hidden) == ([0] * 4, [0, 1, 2, 3], 4, 4)
    assert accepted == [4]
    assert ends == [lengths[-1]]


def test_token_following_processor_accepts_one_token_per_step(tmp_path: Any) -> None:
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
    driver = Driver(RECORDER, str(file))
    for each, extra in ((plain, {}), (driver, {"extra_args": {"x": 1}})):
        each.add("a", PROMPT, SamplingParams(temperature=0, **extra))
    want = plain.generate("a", 6)
    driver.step()
    result = draft_step(driver, "a", want[1:4])
    assert (result.accepted, result.tokens) == ([1], [want[1]])
    registered = next(
        r for r in driver.registry.entries("logits_processors") if r.entry.name == "follower"
    )
    assert driver.registry.load(registered).seen == [[0], [0]]


def test_extension_may_verify_draft_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def verify(self: Any, rows: Any, drafts: Any, tokens: Any, logits: Any, payload: Any) -> Any:
        assert logits.shape[0] == len(rows.rows)
        return drafts.where(drafts == 60, tokens), drafts == 60

    monkeypatch.setattr(recording_extension.Recorder, "verify", verify, raising=False)
    driver = Driver(RECORDER)
    driver.add("a", PROMPT)
    driver.step()
    result = draft_step(driver, "a", [60, 60, 33])
    assert (result.accepted, result.tokens[:2]) == ([3], [60, 60])
